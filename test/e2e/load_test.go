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
	fleet   *fleet
	n       int64 // The number of the last change.
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (f *fleet) newLoad() *load {
	l := &load{fleet: f, cancel: func() {}}
	f.Cleanup(l.stop)
	return l
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
		object := fmt.Sprintf("widget-%d", l.n%objectCount)
		for l.change(ctx, object) != nil { // The API server can be unavailable.
			<-ticker.C
			if l.fleet.Failed() {
				return
			}
		}
		l.fleet.log.Add(history.Event{Kind: history.Changed, Object: object, N: l.n})
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *load) change(ctx context.Context, object string) error {
	const requestTimeout = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	_, err := l.fleet.client.Resource(widgets).Namespace(l.fleet.namespace).Patch(ctx, object, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"n":%d}}`, l.n), metav1.PatchOptions{})
	return err
}
