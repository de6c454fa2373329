package typewatch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestStates(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	notFound := apierrors.NewNotFound(widgets, "")
	forbidden := apierrors.NewForbidden(widgets, "", errors.New("no right"))
	ctx := t.Context()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	var observed []Phase
	h := newHealth(func(s State) { observed = append(observed, s.Phase) })
	for _, step := range []struct {
		name    string
		do      func()
		phase   Phase
		message string
	}{
		{"before it runs", func() {}, Stopped, ""},
		{"it runs", h.start, Syncing, ""},
		{"the type is not served", func() { h.listed(ctx, notFound) }, NotFound, notFound.Error()},
		{"it is, and has synced", func() { h.listed(ctx, nil); h.watching(ctx, nil); h.filled() }, Synced, ""},
		{"a request that ended with its context says nothing", func() { h.watching(ended, forbidden) }, Synced, ""},
		{"the watch is forbidden", func() { h.watching(ctx, forbidden) }, Forbidden, forbidden.Error()},
		{"a list does not mend that", func() { h.listed(ctx, nil); h.filled() }, Forbidden, forbidden.Error()},
		{"the token is none", func() { h.watching(ctx, apierrors.NewUnauthorized("who are you")) }, Forbidden, "who are you"},
		{"another failure", func() { h.watching(ctx, errors.New("refused")) }, Failing, "refused"},
		{"a watch opens", func() { h.watching(ctx, nil) }, Synced, ""},
		{"it is stopped", h.stop, Stopped, ""},
	} {
		step.do()
		if got := h.state(); got.Phase != step.phase || got.Message != step.message || got.Since.IsZero() {
			t.Errorf("%s: %+v", step.name, got)
		}
	}
	want := []Phase{Syncing, NotFound, Syncing, Synced, Forbidden, Failing, Synced, Stopped}
	if !slices.Equal(observed, want) {
		t.Errorf("observed %v, want %v", observed, want)
	}
}

// The reflector's waits end with the run.
func TestAfterEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		<-after(ctx, time.Second)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited %s", waited)
		}
		time.AfterFunc(time.Second, cancel)
		<-after(ctx, time.Hour)
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("waited %s", waited)
		}
	})
}
