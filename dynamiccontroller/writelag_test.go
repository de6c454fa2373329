package dynamiccontroller

import (
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/writes"
)

// The limit can be reached before an object whose state is unknown has been read.
func TestCountWriteLag_BeforeAnUnknownWriteIsRead(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	unread := &ownWrites{unknown: []unknownWrite{{Target: writes.Target{Resource: widgets}}}}
	if !unread.isMissing() || unread.lacking() != widgets {
		t.Errorf("missing: %t, in %s", unread.isMissing(), unread.lacking())
	}
	r := &registration{log: logr.Discard(), core: &core{}}
	r.countWriteLag("a", unread.lacking())
	if got := r.writeLags.Load(); got != 1 {
		t.Errorf("counted %d lags", got)
	}
}
