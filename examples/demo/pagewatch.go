package main

import (
	"context"
	"fmt"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// pageWatch counts how often the page of each WebApp was written, as the API server tells.
type pageWatch struct {
	watch watch.Interface
	ended chan struct{}

	mu     sync.Mutex // guards writes
	writes map[string]map[string]int
}

// watchPages watches from now on, until it is stopped.
func (c *theCluster) watchPages(ctx context.Context) (*pageWatch, error) {
	list, err := c.in(configMaps).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	w := &pageWatch{ended: make(chan struct{}), writes: map[string]map[string]int{}}
	w.watch, err = c.in(configMaps).Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(w.ended)
		for event := range w.watch.ResultChan() {
			if obj, ok := event.Object.(*unstructured.Unstructured); ok && event.Type != watch.Deleted {
				w.saw(obj)
			}
		}
	}()
	return w, nil
}

// saw takes a page as it was written.
func (w *pageWatch) saw(obj *unstructured.Unstructured) {
	name, is := strings.CutSuffix(obj.GetName(), "-page")
	if !is {
		return
	}
	text, _, _ := strings.Cut(pageOf(obj), ", from")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writes[name] == nil {
		w.writes[name] = map[string]int{}
	}
	w.writes[name][text]++
}

func (w *pageWatch) count(name, text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes[name][text]
}

// notOnce is an error if the page of one of the WebApps was written with the text more or less than once.
func (w *pageWatch) notOnce(names []string, text string) error {
	for _, name := range names {
		if n := w.count(name, text); n != 1 {
			return fmt.Errorf("the page of %s was written %d times with %q", name, n, text)
		}
	}
	return nil
}

func (w *pageWatch) stop() {
	w.watch.Stop()
	<-w.ended
}
