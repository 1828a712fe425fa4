"""The differential run: federator's informer and client-go's follow one apiserver through the same faults."""
