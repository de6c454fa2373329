package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/test/e2e/internal/history"
)

// load changes objects one after another, at a rate that replicas can keep up with.
type load struct {
	fleet    *fleet
	constant []object // Never changed.
	changing []object
	n        int64 // The number of the last change.
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu   sync.Mutex // guards last
	last map[object]int64
}

func (f *fleet) newLoad() *load {
	l := &load{fleet: f, cancel: func() {}, last: map[object]int64{}}
	f.Cleanup(l.stop)
	return l
}

// add adds an object before the first start.
func (l *load) add(o object, isChanging bool) {
	if isChanging {
		l.changing = append(l.changing, o)
	} else {
		l.constant = append(l.constant, o)
	}
}

// lastChange returns the number of the last confirmed change to an object.
func (l *load) lastChange(o object) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[o]
}

func (l *load) start() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.fleet.Context()))
	l.cancel = cancel
	l.running.Go(func() { l.run(ctx) })
}

// stop stops the changes and waits until the last one has been confirmed.
func (l *load) stop() {
	l.cancel()
	l.running.Wait()
}

func (l *load) run(ctx context.Context) {
	const interval = 20 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		l.n++
		o := l.changing[l.n%int64(len(l.changing))]
		if l.change(ctx, o) == nil { // The API server or the type can be unavailable.
			l.fleet.log.Add(history.Event{Kind: history.Changed, Object: o.name, N: l.n})
			l.mu.Lock()
			l.last[o] = l.n
			l.mu.Unlock()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *load) change(ctx context.Context, o object) error {
	const requestTimeout = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	_, err := l.fleet.client.Resource(o.gvr).Namespace(l.fleet.namespace).Patch(ctx, o.name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"n":%d}}`, l.n), metav1.PatchOptions{})
	return err
}
