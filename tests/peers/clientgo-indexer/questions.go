package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Questions say what is asked for.
type Questions struct {
	// Rounds is how often each is asked.
	Rounds int `json:"rounds"`
	// Prefixes are those of the asked clusters' IDs, where not all are asked.
	Prefixes []string `json:"prefixes"`
	// Cluster is the one cluster of questions about one.
	Cluster string `json:"cluster"`
	// Namespace, Node, App, Owner and Name are what the objects have that are asked for.
	Namespace string    `json:"namespace"`
	Node      string    `json:"node"`
	App       string    `json:"app"`
	Owner     types.UID `json:"owner"`
	Name      string    `json:"name"`
	// Labels and NotIn are label selectors.
	Labels string `json:"labels"`
	NotIn  string `json:"notin"`
	// GroupBy is a label.
	GroupBy string `json:"group_by"`
	// First is how many objects a page has.
	First int `json:"first"`
}

// Question is one of them: what it finds is told as items or as texts.
type Question struct {
	Name string
	Ask  func() (Found, error)
}

// Found is either items of a type or of several, or lines.
type Found struct {
	items map[string][]*Item
	lines []string
}

// All questions, asked as programs ask them: by an index where there is one, and by looking at what that gives.
func (asked Questions) All(inventory *Inventory) []Question {
	of := inventory.indexers
	inPrefixes := func(item *Item) bool {
		return slices.ContainsFunc(asked.Prefixes, func(prefix string) bool {
			return strings.HasPrefix(item.Cluster, prefix)
		})
	}
	indexed := func(resource, index, value string, matches func(*Item) bool) (Found, error) {
		objects, err := of[resource].ByIndex(index, value)
		return Found{items: map[string][]*Item{resource: filtered(objects, matches)}}, err
	}
	selecting := func(text string) (func(*Item) bool, error) {
		selector, err := labels.Parse(text)
		return func(item *Item) bool { return selector.Matches(labels.Set(item.GetLabels())) }, err
	}
	everywhere := func(matches func(*Item) bool) (Found, error) {
		items := map[string][]*Item{}
		for resource, indexer := range of {
			if found := filtered(indexer.List(), matches); len(found) > 0 {
				items[resource] = found
			}
		}
		return Found{items: items}, nil
	}
	return []Question{
		{"pods of a namespace in all clusters", func() (Found, error) {
			return indexed("pods", byNamespace, asked.Namespace, nil)
		}},
		{"deployments of an application in some clusters", func() (Found, error) {
			return indexed("deployments", byApp, asked.App, inPrefixes)
		}},
		{"pods of a node", func() (Found, error) {
			return indexed("pods", byNode, asked.Node, func(item *Item) bool { return item.Cluster == asked.Cluster })
		}},
		{"pods with two labels in all clusters", func() (Found, error) {
			matches, err := selecting(asked.Labels)
			return Found{items: map[string][]*Item{"pods": filtered(of["pods"].List(), matches)}}, err
		}},
		{"pods of a cluster whose label is none of two values", func() (Found, error) {
			matches, err := selecting(asked.NotIn)
			if err != nil {
				return Found{}, err
			}
			return indexed("pods", byCluster, asked.Cluster, matches)
		}},
		{"objects of an owner", func() (Found, error) {
			return everywhere(func(item *Item) bool {
				for _, owner := range item.GetOwnerReferences() {
					if owner.UID == asked.Owner {
						return true
					}
				}
				return false
			})
		}},
		{"number by cluster and type", func() (Found, error) {
			var lines []string
			for resource, indexer := range of {
				for _, cluster := range indexer.ListIndexFuncValues(byCluster) {
					keys, err := indexer.IndexKeys(byCluster, cluster)
					if err != nil {
						return Found{}, err
					}
					lines = append(lines, fmt.Sprintf("%s/%s=%d", cluster, resource, len(keys)))
				}
			}
			return Found{lines: lines}, nil
		}},
		{"number by a label, of everything", func() (Found, error) {
			counts := map[string]int{}
			for _, indexer := range of {
				for _, object := range indexer.List() {
					if value, found := object.(*Item).GetLabels()[asked.GroupBy]; found {
						counts[value]++
					}
				}
			}
			lines := make([]string, 0, len(counts))
			for value, count := range counts {
				lines = append(lines, fmt.Sprintf("%s=%d", value, count))
			}
			return Found{lines: lines}, nil
		}},
		{"first page of all pods, by name", func() (Found, error) {
			pods := filtered(of["pods"].List(), nil)
			slices.SortFunc(pods, byName)
			return Found{items: map[string][]*Item{"pods": pods[:min(asked.First, len(pods))]}}, nil
		}},
		{"objects of a name, of any type", func() (Found, error) {
			return everywhere(func(item *Item) bool { return item.GetName() == asked.Name })
		}},
	}
}

// Measure asks a question some times.
func (question Question) Measure(rounds int) (Answer, error) {
	answer := Answer{Name: question.Name}
	for range rounds {
		began := time.Now()
		found, err := question.Ask()
		answer.Seconds = append(answer.Seconds, time.Since(began).Seconds())
		if err != nil {
			return answer, err
		}
		answer.Found = found.texts()
	}
	return answer, nil
}

// texts are sorted lines: what was found as such, or a line for each object.
func (found Found) texts() []string {
	lines := append([]string{}, found.lines...)
	for resource, items := range found.items {
		for _, item := range items {
			lines = append(lines, strings.Join([]string{item.Cluster, resource, item.GetNamespace(), item.GetName()}, "/"))
		}
	}
	slices.Sort(lines)
	return lines
}

func filtered(objects []any, matches func(*Item) bool) []*Item {
	var items []*Item
	for _, object := range objects {
		if item := object.(*Item); matches == nil || matches(item) {
			items = append(items, item)
		}
	}
	return items
}

func byName(one, other *Item) int {
	if order := strings.Compare(one.GetName(), other.GetName()); order != 0 {
		return order
	}
	if order := strings.Compare(one.Cluster, other.Cluster); order != 0 {
		return order
	}
	return strings.Compare(one.GetNamespace(), other.GetNamespace())
}
