package protect_test

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"github.com/dynamic-controller/engine/internal/protect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCall_LetsGoexitEndTheGoroutine(t *testing.T) {
	returned := true
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned = false
		_ = protect.Call(runtime.Goexit)
		returned = true
	}()
	<-done
	if returned {
		t.Error("the goroutine continued")
	}
}

func TestIsolate_ReturnsPanicsAndGoexit(t *testing.T) {
	called := false
	if mistake := protect.Isolate(func() { called = true }); mistake != nil || !called {
		t.Errorf("got %v, called %v", mistake, called)
	}
	mistake := protect.Isolate(func() { panic("on purpose") })
	if mistake == nil || mistake.Error() != "panic: on purpose" || len(mistake.Stack) == 0 {
		t.Errorf("got %v", mistake)
	}
	mistake = protect.Isolate(runtime.Goexit)
	if mistake == nil || mistake.Error() != "the function called runtime.Goexit" || mistake.Stack != nil {
		t.Errorf("got %v", mistake)
	}
}

func TestGuard_IsolatesAfterTheFirstGoexit(t *testing.T) {
	var g protect.Guard
	if mistake := g.Call(func() { panic("on purpose") }); mistake == nil {
		t.Error("the panic was not returned")
	}
	var returned []*protect.Mistake
	done := make(chan struct{})
	go func() {
		defer close(done)
		protect.Resume(func() {
			for len(returned) < 2 {
				returned = append(returned, g.Call(runtime.Goexit))
			}
		})
	}()
	<-done
	if len(returned) != 2 || returned[0] == nil || returned[1] == nil {
		t.Errorf("got %v", returned)
	}
}

func TestResume_CallsAgainAfterGoexit(t *testing.T) {
	calls, returned := 0, false
	done := make(chan struct{})
	go func() {
		defer close(done)
		protect.Resume(func() {
			if calls++; calls < 4 {
				runtime.Goexit()
			}
		})
		returned = true
	}()
	<-done
	if calls != 4 || returned {
		t.Errorf("%d calls, and the goroutine continued: %v; want 4, false", calls, returned)
	}
	protect.Resume(func() { calls++ })
	if calls != 5 {
		t.Errorf("%d calls, want 5", calls)
	}
}

func TestResume_DoesNotCallAgainAfterAPanic(t *testing.T) {
	calls := 0
	mistake := protect.Call(func() {
		protect.Resume(func() {
			calls++
			panic("on purpose")
		})
	})
	if mistake == nil || calls != 1 {
		t.Errorf("got %v after %d calls", mistake, calls)
	}
}

// forked wraps itself twice, so that its tree of wrapped errors is endless.
type forked struct{}

func (f forked) Error() string   { return "forked" }
func (f forked) Unwrap() []error { return []error{f, f} }

func TestError_RejectsAnEndlessTree(t *testing.T) {
	_, mistake := protect.Error("handler", forked{}, func() { t.Error("the error was used") })
	if mistake == nil || mistake.Stack != nil {
		t.Errorf("got %v", mistake)
	}
}

func TestError_ReturnsTheTextOfAValidError(t *testing.T) {
	used := false
	err := fmt.Errorf("outer: %w", errors.Join(fs.ErrExist, nil, fs.ErrClosed))
	text, mistake := protect.Error("handler", err, func() { used = true })
	if mistake != nil || text != "outer: file already exists\nfile already closed" || !used {
		t.Errorf("got %q, %v, used %v", text, mistake, used)
	}
}

func ExampleError() {
	var err *fs.PathError
	_, mistake := protect.Error("handler", err, nil)
	fmt.Println(mistake)
	// Output: handler returned a nil *fs.PathError as an error; return an untyped nil instead
}
