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
