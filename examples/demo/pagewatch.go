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

// pageWatch uses a watch to count the writes to each WebApp's page.
type pageWatch struct {
	watch watch.Interface
	ended chan struct{}

	mu     sync.Mutex // guards writes
	writes map[string]map[string]int
}

// watchPages starts a watch that runs until stop is called.
func (c *demoCluster) watchPages(ctx context.Context) (*pageWatch, error) {
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
				w.record(obj)
			}
		}
	}()
	return w, nil
}

// record counts a write to a page.
func (w *pageWatch) record(obj *unstructured.Unstructured) {
	name, ok := strings.CutSuffix(obj.GetName(), "-page")
	if !ok {
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

// checkOnce returns an error unless each WebApp's page was written exactly once with the text.
func (w *pageWatch) checkOnce(names []string, text string) error {
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
