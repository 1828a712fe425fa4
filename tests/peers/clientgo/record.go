package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// State names one state of one object.
type State struct {
	UID     string `json:"uid"`
	Version string `json:"version"`
}

// Event is what a handler was told.
type Event struct {
	Type      string `json:"type"`
	Resource  string `json:"resource"`
	Key       string `json:"key"`
	State     State  `json:"state"`
	Old       *State `json:"old,omitempty"`
	Initial   bool   `json:"initial,omitempty"`
	Tombstone bool   `json:"tombstone,omitempty"`
}

// Snapshot is what the stores hold, by type and key, and how many requests of each kind were sent so far.
type Snapshot struct {
	Type     string                      `json:"type"`
	Held     map[string]map[string]State `json:"held"`
	Requests map[string]int              `json:"requests"`
}

func snapshot(stores map[string]cache.Store, requests *Requests) Snapshot {
	held := map[string]map[string]State{}
	for resource, store := range stores {
		held[resource] = map[string]State{}
		for _, obj := range store.List() {
			key, state := identify(obj)
			held[resource][key] = state
		}
	}
	return Snapshot{Type: "snapshot", Held: held, Requests: requests.Counts()}
}

// Recorder is a handler that writes down what it is told.
type Recorder struct {
	resource string
	output   *Output
}

var _ cache.ResourceEventHandler = (*Recorder)(nil)

// OnAdd writes an "add".
func (r *Recorder) OnAdd(obj any, isInInitialList bool) {
	key, state := identify(obj)
	r.output.Write(Event{Type: "add", Resource: r.resource, Key: key, State: state, Initial: isInInitialList})
}

// OnUpdate writes an "update".
func (r *Recorder) OnUpdate(oldObj, newObj any) {
	key, state := identify(newObj)
	_, old := identify(oldObj)
	r.output.Write(Event{Type: "update", Resource: r.resource, Key: key, State: state, Old: &old})
}

// OnDelete writes a "delete".
func (r *Recorder) OnDelete(obj any) {
	event := Event{Type: "delete", Resource: r.resource}
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		event.Tombstone = true
		_, event.State = identify(tombstone.Obj)
		event.Key = tombstone.Key
	} else {
		event.Key, event.State = identify(obj)
	}
	r.output.Write(event)
}

func identify(obj any) (string, State) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		panic(fmt.Sprintf("%T has no metadata", obj)) // informers hold nothing else
	}
	key := cache.MetaObjectToName(accessor).String()
	return key, State{UID: string(accessor.GetUID()), Version: accessor.GetResourceVersion()}
}

// Output writes JSON texts, one a line, from any goroutine.
type Output struct {
	mutex   sync.Mutex
	encoder *json.Encoder
	err     error
}

// NewOutput writes to w.
func NewOutput(w io.Writer) *Output {
	return &Output{encoder: json.NewEncoder(w)}
}

// Write writes one line; after a failure it writes nothing more.
func (o *Output) Write(line any) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.err == nil {
		o.err = o.encoder.Encode(line)
	}
}

// Err is the first failure.
func (o *Output) Err() error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.err
}

// Requests counts requests by kind: "list", "watch-list" and "watch".
type Requests struct {
	mutex  sync.Mutex
	counts map[string]int
}

// NewRequests has counted nothing.
func NewRequests() *Requests {
	return &Requests{counts: map[string]int{}}
}

// Counting is a transport that counts what it passes on.
func (r *Requests) Counting(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		r.count(request)
		return next.RoundTrip(request)
	})
}

// Counts are the counts so far.
func (r *Requests) Counts() map[string]int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return maps.Clone(r.counts)
}

func (r *Requests) count(request *http.Request) {
	query := request.URL.Query()
	kind := "list"
	if query.Get("watch") == "true" {
		kind = "watch"
		if query.Get("sendInitialEvents") == "true" {
			kind = "watch-list"
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.counts[kind]++
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	return f(request)
}
