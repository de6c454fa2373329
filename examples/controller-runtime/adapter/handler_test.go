package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/examples/controller-runtime/adapter"
)

func TestHandler_ConvertsResults(t *testing.T) {
	failed := errors.New("failed")
	priority := 1
	for name, test := range map[string]struct {
		result reconcile.Result
		err    error
		want   string // the handler's error
	}{
		"success":         {},
		"only a priority": {result: reconcile.Result{Priority: &priority}},
		"a delay":         {result: reconcile.Result{RequeueAfter: time.Second}, want: "requeue after 1s"},
		"a requeue": {
			//nolint:staticcheck // Requeue is deprecated, but existing reconcilers use it.
			result: reconcile.Result{Requeue: true}, want: "requeue after 0s",
		},
		"a requeue with a delay": {
			//nolint:staticcheck // Requeue is deprecated, but existing reconcilers use it.
			result: reconcile.Result{Requeue: true, RequeueAfter: time.Second}, want: "requeue after 1s",
		},
		"a negative delay":      {result: reconcile.Result{RequeueAfter: -time.Second}},
		"an error":              {err: failed, want: "failed"},
		"an error with a delay": {result: reconcile.Result{RequeueAfter: time.Second}, err: failed, want: "failed"},
		"a terminal error":      {err: reconcile.TerminalError(failed), want: "terminal: terminal error: failed"},
		"a wrapped terminal error": {
			err: fmt.Errorf("a: %w", reconcile.TerminalError(failed)), want: "terminal: a: terminal error: failed",
		},
		"a nil terminal error": {err: reconcile.TerminalError(nil), want: "terminal: nil terminal error"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := adapter.Handler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				return test.result, test.err
			}))
			err := handler(t.Context(), dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/first"})
			if got := fmt.Sprint(err); got != test.want && (err != nil || test.want != "") {
				t.Errorf("got the error %q, want %q", got, test.want)
			}
			if _, requeue := dynamiccontroller.RequeueDelay(err); requeue != strings.HasPrefix(test.want, "requeue") {
				t.Errorf("got requeue %t", requeue)
			}
			if test.err == failed && !errors.Is(err, failed) {
				t.Errorf("%v does not wrap the reconciler's error", err)
			}
		})
	}
}

func TestHandler_PassesRequestAndLogger(t *testing.T) {
	var logged []string
	logger := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	ctx := logr.NewContext(t.Context(), logger.WithValues("object", "from the engine"))
	for key, want := range map[string]types.NamespacedName{
		"default/first": {Namespace: "default", Name: "first"},
		"cluster-wide":  {Name: "cluster-wide"},
	} {
		logged = nil
		handler := adapter.Handler(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			log.FromContext(ctx).Info("Reconciling")
			if r.NamespacedName != want {
				t.Errorf("got the request %s, want %s", r, want)
			}
			return reconcile.Result{}, nil
		}))
		if err := handler(ctx, dynamiccontroller.ObjectIdentifiers{NamespacedKey: key}); err != nil {
			t.Error(err)
		}
		for _, value := range []string{`"object"="from the engine"`, fmt.Sprintf(`"name"=%q`, want.Name), `"reconcileID"=`} {
			if len(logged) != 1 || !strings.Contains(logged[0], value) {
				t.Errorf("logged %q, want a line that contains %s", logged, value)
			}
		}
	}
}
