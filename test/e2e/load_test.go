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

// load changes objects, one after another, at a pace that replicas can follow.
type load struct {
	fleet   *fleet
	n       int64 // the last change
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

// stop returns when the last change is confirmed.
func (l *load) stop() {
	l.cancel()
	l.running.Wait()
}

func (l *load) run(ctx context.Context) {
	const pace = 20 * time.Millisecond
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		l.n++
		object := fmt.Sprintf("widget-%d", l.n%objectCount)
		for l.change(ctx, object) != nil { // the API server may be away
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
	const tooLong = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tooLong)
	defer cancel()
	_, err := l.fleet.client.Resource(widgets).Namespace(l.fleet.namespace).Patch(ctx, object, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"n":%d}}`, l.n), metav1.PatchOptions{})
	return err
}
