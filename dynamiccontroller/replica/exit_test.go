package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// faulty is an error with methods that can panic.
type faulty struct {
	unwrap func() error
	as     func()
}

func (e faulty) Error() string { return "faulty" }

func (e faulty) Unwrap() error {
	if e.unwrap == nil {
		return nil
	}
	return e.unwrap()
}

func (e faulty) As(any) bool {
	if e.as != nil {
		e.as()
	}
	return false
}

// unstable is an error whose Error method panics on the second call.
type unstable struct{ read bool }

func (e *unstable) Error() string {
	if e.read {
		panic(&unstable{read: true}) // fmt does not recover if the panic value's methods panic too
	}
	e.read = true
	return "unstable"
}

func TestL1_InvalidErrorKeepsTheLeaseAndDoesNotEndTheProcess(t *testing.T) {
	cyclic := faulty{}
	cyclic.unwrap = func() error { return cyclic }
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"typed nil":            {(*fs.PathError)(nil), "nil *fs.PathError"},
		"Error panics":         {&unstable{read: true}, "panics"},
		"Unwrap panics":        {faulty{unwrap: func() error { panic("oh") }}, "panics"},
		"As panics":            {faulty{as: func() { panic("oh") }}, "panics"},
		"Unwrap returns err":   {cyclic, "wraps more than"},
		"Unwrap calls Goexit":  {faulty{unwrap: func() error { runtime.Goexit(); return nil }}, "runtime.Goexit"},
		"joined and typed nil": {errors.Join(errBroken, (*fs.PathError)(nil)), "panics"},
	} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, before the context was cancelled: %t", name, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &fakeServer{}
					a := newRig(t, s, "a")
					a.registerFunc("failing", func(ctx context.Context) error {
						if !early {
							<-ctx.Done()
						}
						return test.err
					})
					a.start()
					time.Sleep(time.Second)
					wantErrorContains(t, a.stop(), `"failing"`, test.want)
					wantHolder(t, s, "a")
				})
			})
		}
	}
}

func TestRun_FormatsRunnableErrorOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		unstable := &unstable{}
		a.registerFunc("failing", func(context.Context) error { return unstable })
		a.start()
		err := a.result()
		wantErrorContains(t, err, "unstable")
		wantErrorIs(t, err, unstable)
	})
}

// noBranches is an error that wraps an empty list.
type noBranches struct{}

func (noBranches) Error() string   { return "a handler is still running" }
func (noBranches) Unwrap() []error { return nil }

// incomparable is an error that panics if it is compared with one of the same type.
type incomparable []string

func (i incomparable) Error() string { return i[0] }

func TestL1_OnlyACleanExitReleasesTheLease(t *testing.T) {
	handlers := errors.New("a handler is still running")
	join := errors.Join
	wrap := func(err error) error { return fmt.Errorf("wrapped: %w", err) }
	for name, test := range map[string]struct {
		returned func(ctx context.Context) error
		clean    bool
	}{
		"nil":                    {func(context.Context) error { return nil }, true},
		"ctx.Err":                {func(ctx context.Context) error { return ctx.Err() }, true},
		"ctx.Err, wrapped":       {func(ctx context.Context) error { return wrap(ctx.Err()) }, true},
		"context.Cause":          {context.Cause, true},
		"context.Cause, wrapped": {func(ctx context.Context) error { return wrap(context.Cause(ctx)) }, true},
		"ctx.Err and Cause":      {func(ctx context.Context) error { return join(ctx.Err(), context.Cause(ctx)) }, true},
		"deadline":               {func(context.Context) error { return context.DeadlineExceeded }, true},
		"deadline, wrapped":      {func(context.Context) error { return wrap(context.DeadlineExceeded) }, true},
		"server closed":          {func(context.Context) error { return http.ErrServerClosed }, true},
		"server closed, wrapped": {func(context.Context) error { return wrap(http.ErrServerClosed) }, true},
		"both, joined": {func(context.Context) error {
			return join(context.DeadlineExceeded, http.ErrServerClosed)
		}, true},
		"not leading":             {func(context.Context) error { return ErrNotLeading }, true},
		"not leading, reason":     {func(context.Context) error { return wrap(notLeading(handlers)) }, true},
		"not leading and other":   {func(context.Context) error { return join(ErrNotLeading, handlers) }, false},
		"other":                   {func(context.Context) error { return handlers }, false},
		"ctx.Err and other":       {func(ctx context.Context) error { return join(ctx.Err(), handlers) }, false},
		"context.Cause and other": {func(ctx context.Context) error { return join(context.Cause(ctx), handlers) }, false},
		"deadline and other": {func(context.Context) error {
			return join(context.DeadlineExceeded, handlers)
		}, false},
		"server closed and other": {func(context.Context) error {
			return join(http.ErrServerClosed, handlers)
		}, false},
		"other, deep":  {func(ctx context.Context) error { return wrap(join(ctx.Err(), handlers)) }, false},
		"wraps nil":    {func(context.Context) error { return faulty{} }, false},
		"no branches":  {func(context.Context) error { return noBranches{} }, false},
		"incomparable": {func(context.Context) error { return incomparable{"a handler is still running"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a")
				a.registerFunc("work", func(ctx context.Context) error {
					<-ctx.Done()
					return test.returned(ctx)
				})
				a.start()
				time.Sleep(time.Second)
				err := a.stop()
				if test.clean {
					wantNoError(t, err)
					wantReleased(t, s)
					return
				}
				wantErrorContains(t, err, `"work" did not stop cleanly`)
				wantHolder(t, s, "a")
			})
		})
	}
}

func TestRun_CleanExitErrorsAreFailuresBeforeTheContextIsCancelled(t *testing.T) {
	for name, returned := range map[string]error{
		"context canceled": context.Canceled, "deadline": context.DeadlineExceeded, "server closed": http.ErrServerClosed,
		"not leading": ErrNotLeading,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a")
				a.registerFunc("work", func(context.Context) error { return returned })
				err := a.start().result()
				wantErrorIs(t, err, returned)
				wantErrorContains(t, err, `"work" failed`)
				wantReleased(t, s)
			})
		})
	}
}

func TestL1_CallersContextCauseIsACleanExit(t *testing.T) {
	for name, returned := range map[string]func(context.Context) error{
		"cause":          context.Cause,
		"cause, wrapped": func(ctx context.Context) error { return fmt.Errorf("wrapped: %w", context.Cause(ctx)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a")
				a.registerFunc("work", func(ctx context.Context) error {
					<-ctx.Done()
					return returned(ctx)
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer time.AfterFunc(time.Second, func() { cancel(errBroken) }).Stop()
				wantNoError(t, a.Run(ctx))
				wantReleased(t, s)
			})
		})
	}
}
