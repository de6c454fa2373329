package runcontext

import (
	"context"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEnding(t *testing.T) {
	var ending context.Context
	lifetime := WithEnding(t.Context(), func() context.Context { return ending })
	var cancel context.CancelFunc
	ending, cancel = context.WithCancel(lifetime)
	defer cancel()
	for name, ctx := range map[string]context.Context{"of the run": lifetime, "of a handler": ending} {
		if Ending(ctx) != ending {
			t.Errorf("for the context %s, Ending returned another context", name)
		}
	}
	if Ending(t.Context()) != context.Background() {
		t.Error("for the context of no run, Ending did not return context.Background")
	}
}
