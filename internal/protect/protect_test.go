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

func TestCallLetsGoexitEndTheGoroutine(t *testing.T) {
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

// forked wraps itself twice: a walk over all that it wraps never ends.
type forked struct{}

func (f forked) Error() string   { return "forked" }
func (f forked) Unwrap() []error { return []error{f, f} }

func TestErrorRefusesAnEndlessTree(t *testing.T) {
	_, mistake := protect.Error("handler", forked{}, func() { t.Error("the error was used") })
	if mistake == nil || mistake.Stack != nil {
		t.Errorf("got %v", mistake)
	}
}

func TestErrorKeepsTheTextOfAValidError(t *testing.T) {
	used := false
	text, mistake := protect.Error("handler", fmt.Errorf("outer: %w", errors.Join(fs.ErrExist, nil, fs.ErrClosed)), func() { used = true })
	if mistake != nil || text != "outer: file already exists\nfile already closed" || !used {
		t.Errorf("got %q, %v, used %v", text, mistake, used)
	}
}

func ExampleError() {
	var err *fs.PathError
	_, mistake := protect.Error("handler", err, nil)
	fmt.Println(mistake)
	// Output: handler returned a nil *fs.PathError as error, which is not equal to nil
}
