// Clientgo follows some types of one apiserver with client-go's informers, and writes down what they tell their
// handlers. Federator's differential run starts it beside federator's own informers and compares the two.
//
// It writes one JSON text a line: an Event for each call of a handler; a Snapshot for each line "snapshot" that it reads
// from standard input, and a last one when it ends. It ends in order when standard input ends or at SIGTERM.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file whose current context names the apiserver")
	resources := flag.String("resources", "v1/configmaps", "types, each as version/plural or group/version/plural")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, strings.Split(*resources, ","), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string, resources []string, in io.Reader, out io.Writer) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	requests := NewRequests()
	config.Wrap(requests.Counting)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	output := NewOutput(out)
	stores := map[string]cache.Store{}
	var informers []cache.SharedIndexInformer
	for _, each := range resources {
		resource, err := parse(each)
		if err != nil {
			return err
		}
		informer := newInformer(client, resource)
		if _, err := informer.AddEventHandler(&Recorder{resource.Resource, output}); err != nil {
			return err
		}
		stores[resource.Resource] = informer.GetStore()
		informers = append(informers, informer)
	}
	following, end := context.WithCancel(context.Background())
	defer end()
	var running sync.WaitGroup
	for _, informer := range informers {
		running.Go(func() { informer.RunWithContext(following) })
	}
	snapshots(ctx, in, func() { output.Write(snapshot(stores, requests)) })
	end()
	running.Wait()
	output.Write(snapshot(stores, requests))
	return output.Err()
}

// newInformer is what dynamicinformer makes, without the typed informers of all of Kubernetes, which take long to build.
func newInformer(client dynamic.Interface, resource schema.GroupVersionResource) cache.SharedIndexInformer {
	requests := client.Resource(resource)
	listWatch := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return requests.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return requests.Watch(ctx, options)
		},
	}
	return cache.NewSharedIndexInformerWithOptions(
		cache.ToListWatcherWithWatchListSemantics(listWatch, client),
		&unstructured.Unstructured{},
		cache.SharedIndexInformerOptions{ObjectDescription: resource.String()},
	)
}

// snapshots calls take for each line that asks for one, until the input ends or the context is done.
func snapshots(ctx context.Context, in io.Reader, take func()) {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case line, ok := <-lines:
			if !ok {
				return
			}
			if line == "snapshot" {
				take()
			}
		}
	}
}

func parse(text string) (schema.GroupVersionResource, error) {
	switch parts := strings.Split(text, "/"); len(parts) {
	case 2:
		return schema.GroupVersionResource{Version: parts[0], Resource: parts[1]}, nil
	case 3:
		return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
	default:
		return schema.GroupVersionResource{}, fmt.Errorf("%q is neither version/plural nor group/version/plural", text)
	}
}
