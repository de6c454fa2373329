package platform

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestSettle(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	forbidden := apierrors.NewForbidden(widgets.GroupResource(), "one", errors.New("no"))
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "example.com", Kind: "Widget"}, "one", field.ErrorList{})
	timeout := apierrors.NewTimeoutError("later", 1)

	var errorLines int
	log := countErrors(&errorLines)
	k := &keeper{gvr: widgets}
	for _, step := range []struct {
		name       string
		err        error
		want       string // of the error
		wantErrors int    // logged since the beginning
	}{
		{"a write that is forbidden is tried again later, and said", forbidden, "requeue after 30s", 1},
		{"the next one is not said", forbidden, "requeue after 30s", 1},
		{"a failure is the engine's matter", timeout, timeout.Error(), 1},
		{"nor does it make the next one said", forbidden, "requeue after 30s", 1},
		{"a write that succeeds", nil, "", 1},
		{"makes the next one said", forbidden, "requeue after 30s", 2},
		{"a write that the schema refuses is not tried again", invalid, "terminal: " + invalid.Error(), 2},
	} {
		t.Run(step.name, func(t *testing.T) {
			err := k.settle(log, &unstructured.Unstructured{}, step.err)
			if got := message(err); got != step.want {
				t.Errorf("got %q, want %q", got, step.want)
			}
			if errorLines != step.wantErrors {
				t.Errorf("%d errors logged, want %d", errorLines, step.wantErrors)
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
