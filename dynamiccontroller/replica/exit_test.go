package replica

import (
	"context"
	"errors"
	"io/fs"
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

// unstable is an error whose text can be read only once.
type unstable struct{ read bool }

func (e *unstable) Error() string {
	if e.read {
		panic(&unstable{read: true}) // fmt does not recover from a value whose methods panic too
	}
	e.read = true
	return "unstable"
}

func TestL1_InvalidErrorOfARunnableEndsItsHalfButNotTheProcess(t *testing.T) {
	itself := faulty{}
	itself.unwrap = func() error { return itself }
	for name, test := range map[string]struct {
		err  error
		says string
	}{
		"a typed nil":             {(*fs.PathError)(nil), "nil *fs.PathError"},
		"Error panics":            {&unstable{read: true}, "panics"},
		"Unwrap panics":           {faulty{unwrap: func() error { panic("oh") }}, "panics"},
		"As panics":               {faulty{as: func() { panic("oh") }}, "panics"},
		"Unwrap returns itself":   {itself, "wraps more than"},
		"Unwrap ends goroutine":   {faulty{unwrap: func() error { runtime.Goexit(); return nil }}, "goroutine"},
		"joined with a typed nil": {errors.Join(errBroken, (*fs.PathError)(nil)), "panics"},
	} {
		for _, early := range []bool{true, false} {
			when := "after its context was cancelled"
			if early {
				when = "before its context was cancelled"
			}
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &server{}
					a := newRig(t, s, "a")
					a.lead("w", func(ctx context.Context) error {
						if !early {
							<-ctx.Done()
						}
						return test.err
					})
					a.start()
					time.Sleep(time.Second)
					wantSays(t, a.stop(), `"w"`, test.says)
					if s.now().HolderIdentity == "" {
						t.Error("the lease was released")
					}
				})
			})
		}
	}
}

func TestErrorOfARunnableIsFormattedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &server{}, "a")
		unstable := &unstable{}
		a.lead("w", func(context.Context) error { return unstable })
		a.start()
		err := a.result()
		wantSays(t, err, "unstable")
		wantIs(t, err, unstable)
	})
}
