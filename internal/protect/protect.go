package protect

import (
	"fmt"
	"reflect"
	"runtime/debug"
	"sync/atomic"
)

// Mistake describes a mistake in user code: a panic, or an invalid value. Its methods call no user code.
type Mistake struct {
	text string
	// Stack is the stack of a panic. It is nil for an invalid value.
	Stack []byte
}

// Error implements error.
func (m *Mistake) Error() string { return m.text }

// Call calls f. It returns nil, or the panic that ended f. If f calls runtime.Goexit, Call does not return; see
// [Isolate].
func Call(f func()) (panicked *Mistake) {
	returned := false
	defer func() {
		if returned {
			return
		}
		// With GODEBUG=panicnil=1, the value of a panic can be nil.
		value := recover()
		panicked = &Mistake{text: "panic: " + format(value), Stack: debug.Stack()}
	}()
	f()
	returned = true
	return nil
}

// Isolate is like [Call], but calls f in a goroutine of its own. If f calls runtime.Goexit, Isolate returns a Mistake.
func Isolate(f func()) (mistake *Mistake) {
	mistake = &Mistake{text: "the function called runtime.Goexit"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		mistake = Call(f)
	}()
	<-done
	return mistake
}

// Guard calls functions that are called often, and hardly ever call runtime.Goexit. Until one of them does so, they are
// called in the goroutine of the caller. That call ends the goroutine, so that the caller must make the call again in
// another one. From then on, each function is isolated. The zero value is ready to use.
type Guard struct{ exited atomic.Bool }

// Call is like the function [Call] or, once a function has called runtime.Goexit, like [Isolate].
func (g *Guard) Call(f func()) (mistake *Mistake) {
	if g.exited.Load() {
		return Isolate(f)
	}
	returned := false
	defer func() {
		if !returned {
			g.exited.Store(true)
		}
	}()
	mistake = Call(f)
	returned = true
	return mistake
}

// Resume calls f until f returns. If f calls runtime.Goexit, Resume calls f again, in another goroutine, and waits for
// it. The goroutine of the caller then ends, but not before f has returned. Resume does not recover from panics.
func Resume(f func()) {
	returned := false
	call := func() {
		f()
		returned = true
	}
	defer func() {
		if returned {
			return
		}
		if value := recover(); value != nil {
			panic(value)
		}
		for !returned {
			done := make(chan struct{})
			go func() {
				defer close(done)
				call()
			}()
			<-done
		}
	}()
	call()
}

// Error returns the text of err, a non-nil error that source returned. If use is not nil, Error calls use under the
// same protection, so that use can call methods of err.
//
// It returns a Mistake if err is a typed nil, if one of its methods panics or if its tree of wrapped errors is endless.
// If err wraps a typed nil, the text names the type of the nil value.
func Error(source string, err error, use func()) (text string, mistake *Mistake) {
	if IsNil(err) {
		return "", &Mistake{text: fmt.Sprintf("%s returned a nil %T as an error; return an untyped nil instead", source, err)}
	}
	var t tree
	panicked := Call(func() {
		if t = examine(err); t.endless {
			return
		}
		text = err.Error()
		if use != nil {
			use()
		}
	})
	wraps := ""
	if t.typedNil != nil {
		wraps = fmt.Sprintf(" (it wraps a nil %T)", t.typedNil)
	}
	switch {
	case panicked != nil:
		text = fmt.Sprintf("%s returned an error of type %T%s with a method that panics: %s",
			source, err, wraps, panicked.text)
		return "", &Mistake{text: text, Stack: panicked.Stack}
	case t.endless:
		text = fmt.Sprintf("%s returned an error of type %T that wraps more than %d errors", source, err, maxLinks)
		return "", &Mistake{text: text}
	default:
		return text + wraps, nil
	}
}

// IsNil reports whether v holds a nil pointer, map, slice, func or channel. It returns false for an untyped nil.
func IsNil(v any) bool {
	value := reflect.ValueOf(v)
	switch value.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return value.IsNil()
	default:
		return false
	}
}

// maxLinks is the maximum number of errors in a tree. A larger tree counts as endless.
const maxLinks = 100_000

// tree describes an error and the errors that it wraps.
type tree struct {
	typedNil error // a typed nil among them, or nil
	endless  bool
}

// examine walks the tree as errors.As does, but calls no method of a typed nil.
func examine(err error) (t tree) {
	pending := []error{err}
	for links := 0; len(pending) > 0; links++ {
		if links == maxLinks {
			t.endless = true
			return t
		}
		link := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if IsNil(link) {
			t.typedNil = link
			continue
		}
		switch wrapper := link.(type) { //nolint:errorlint // each error of the tree is examined
		case interface{ Unwrap() error }:
			pending = append(pending, wrapper.Unwrap())
		case interface{ Unwrap() []error }:
			pending = append(pending, wrapper.Unwrap()...)
		}
	}
	return t
}

// format returns the text of a panic's value.
func format(value any) (text string) {
	if IsNil(value) {
		return fmt.Sprintf("a nil %T", value)
	}
	text = fmt.Sprintf("a value of type %T, which cannot be formatted", value)
	// fmt recovers from a panic in the value's methods, but not if formatting that panic's value panics too.
	defer func() { _ = recover() }()
	return fmt.Sprint(value)
}
