package main

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	byCluster   = "cluster"
	byNamespace = cache.NamespaceIndex
	byNode      = "node"
	byApp       = "app"

	appLabel = "app.kubernetes.io/name"
)

// Resources are the types that are known, with a new object of each.
var resources = map[string]func() metav1.Object{
	"pods":            func() metav1.Object { return new(corev1.Pod) },
	"replicasets":     func() metav1.Object { return new(appsv1.ReplicaSet) },
	"endpointslices":  func() metav1.Object { return new(discoveryv1.EndpointSlice) },
	"configmaps":      func() metav1.Object { return new(corev1.ConfigMap) },
	"services":        func() metav1.Object { return new(corev1.Service) },
	"deployments":     func() metav1.Object { return new(appsv1.Deployment) },
	"serviceaccounts": func() metav1.Object { return new(corev1.ServiceAccount) },
	"nodes":           func() metav1.Object { return new(corev1.Node) },
	"namespaces":      func() metav1.Object { return new(corev1.Namespace) },
}

// Item is an object and its cluster, which objects do not tell.
type Item struct {
	Cluster string
	metav1.Object
}

// Inventory has an Indexer for each type, over all clusters.
type Inventory struct {
	indexers map[string]cache.Indexer
	clusters map[string]string // the same text for all objects of a cluster
}

// NewInventory is empty.
func NewInventory() *Inventory {
	inventory := &Inventory{indexers: map[string]cache.Indexer{}, clusters: map[string]string{}}
	for resource := range resources {
		indexers := cache.Indexers{
			byCluster:   func(object any) ([]string, error) { return []string{object.(*Item).Cluster}, nil },
			byNamespace: func(object any) ([]string, error) { return []string{object.(*Item).GetNamespace()}, nil },
			byApp:       appOf,
		}
		if resource == "pods" {
			indexers[byNode] = nodeOf
		}
		inventory.indexers[resource] = cache.NewIndexer(keyOf, indexers)
	}
	return inventory
}

// Take adds the object of one line.
func (inventory *Inventory) Take(line []byte) error {
	var taken struct {
		Cluster  string
		Resource string
		Object   json.RawMessage
	}
	if err := json.Unmarshal(line, &taken); err != nil {
		return err
	}
	newObject, found := resources[taken.Resource]
	if !found {
		return fmt.Errorf("nothing is known of %s", taken.Resource)
	}
	object := newObject()
	if err := json.Unmarshal(taken.Object, object); err != nil {
		return fmt.Errorf("one of %s: %w", taken.Resource, err)
	}
	cluster, found := inventory.clusters[taken.Cluster]
	if !found {
		cluster = taken.Cluster
		inventory.clusters[cluster] = cluster
	}
	return inventory.indexers[taken.Resource].Add(&Item{cluster, object})
}

// Len is the number of objects.
func (inventory *Inventory) Len() int {
	number := 0
	for _, indexer := range inventory.indexers {
		number += len(indexer.ListKeys())
	}
	return number
}

func keyOf(object any) (string, error) {
	item := object.(*Item)
	return item.Cluster + "/" + item.GetNamespace() + "/" + item.GetName(), nil
}

func appOf(object any) ([]string, error) {
	if app, found := object.(*Item).GetLabels()[appLabel]; found {
		return []string{app}, nil
	}
	return nil, nil
}

func nodeOf(object any) ([]string, error) {
	return []string{object.(*Item).Object.(*corev1.Pod).Spec.NodeName}, nil
}
