package listwatch

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

func TestAfter_FiresWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		<-After(ctx, time.Second)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited %s", waited)
		}
		time.AfterFunc(time.Second, cancel)
		<-After(ctx, time.Hour)
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("waited %s", waited)
		}
	})
}

// A reflector does not check its context while it delays the retry of a streaming list.
func TestReflector_DelayEndsWithTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, syscall.ECONNREFUSED }
		l, _ := newTest(client{watch: refused})
		defer l.Join()
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		reflector := l.NewReflector(logr.Discard(), "test", time.Hour, store)
		for range 2 {
			const duration = 30 * time.Second // does not coincide with the end of a delay
			attempt, cancel := context.WithTimeout(t.Context(), duration)
			l.BeginAttempt(attempt)
			began := time.Now()
			if err := reflector.ListAndWatchWithContext(attempt); err != nil {
				t.Error(err)
			}
			cancel()
			if waited := time.Since(began); waited != duration {
				t.Errorf("the attempt was cancelled after %s and ended after %s", duration, waited)
			}
		}
	})
}
