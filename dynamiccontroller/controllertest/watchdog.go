package controllertest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
)

const (
	watchdogPeriod = time.Second
	// watchdogLimit is the number of periods after which a goroutine that waits for the network is an error.
	watchdogLimit = 5
)

// watchdog finds calls to WaitIdle that never return. A goroutine that waits for the network does not count as blocked
// in a bubble. As long as there is one, synctest.Wait does not return, and the clock of the bubble, by which WaitIdle
// times out, stands still. No goroutine of the bubble can detect this, because it would itself keep synctest.Wait from
// returning. The watchdog therefore runs outside of all bubbles, on the real clock.
type watchdog struct {
	mu      sync.Mutex     // guards the fields below
	begun   int            // calls to synctest.Wait
	waiting map[int]string // the names of the tests that are in synctest.Wait
	ended   int            // calls to synctest.Wait that have returned
	checked int            // the value of ended at the last check
	streaks map[string]int // for how many periods goroutines have been waiting for the network, by number
	timer   *time.Timer
}

// theWatchdog is created when the process starts, because a timer that is created in a bubble uses the bubble's clock.
var theWatchdog = newWatchdog()

func newWatchdog() *watchdog {
	w := &watchdog{waiting: map[int]string{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(watchdogPeriod, w.check)
	return w
}

// begin must be called before synctest.Wait, and the returned function afterwards.
func (w *watchdog) begin(test string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	this := w.begun
	w.waiting[this] = test
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiting, this)
		w.ended++
	}
}

// check is called once per period. It looks at the goroutines only if no call to synctest.Wait has returned since the
// last check.
func (w *watchdog) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.timer.Reset(watchdogPeriod)
	if len(w.waiting) == 0 || w.checked != w.ended {
		w.checked, w.streaks = w.ended, nil
		return
	}
	streaks := map[string]int{}
	for id, stack := range networkWaits(stacks()) {
		if streaks[id] = w.streaks[id] + 1; streaks[id] == watchdogLimit {
			panic(w.textLocked(stack))
		}
	}
	w.streaks = streaks
}

func (w *watchdog) textLocked(stack string) string {
	var tests []string
	for _, test := range w.waiting {
		tests = append(tests, test)
	}
	return fmt.Sprintf("controllertest: WaitIdle: a goroutine of the bubble waited for the network at each check of "+
		"the last %s; "+
		"WaitIdle never returns meanwhile, because the clock of the bubble stands still; "+
		"use a fake of the client, or a net.Pipe in place of the connection (waiting: %s)\n\n%s\n",
		watchdogLimit*watchdogPeriod, strings.Join(tests, ", "), stack)
}

// stacks returns the stack traces of all goroutines.
func stacks() string {
	for size := 1 << 20; ; size *= 2 {
		buffer := make([]byte, size)
		if n := runtime.Stack(buffer, true); n < size {
			return string(buffer[:n])
		}
	}
}

// networkWaits returns the stack traces of the goroutines that wait for the network in a bubble in which WaitIdle
// waits, by the number of the goroutine.
func networkWaits(stacks string) map[string]string {
	idle, inNetwork := map[string]bool{}, map[string]map[string]string{} // by bubble
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		// The header is, for example, "goroutine 34 [IO wait, 2 minutes, synctest bubble 7]:".
		header, _, _ := strings.Cut(stack, "\n")
		id, state, _ := strings.Cut(strings.TrimPrefix(header, "goroutine "), " ")
		_, bubble, found := strings.Cut(state, "synctest bubble ")
		bubble = strings.TrimRight(bubble, "]:")
		switch {
		case !found:
		case strings.Contains(stack, "controllertest.waitInBubble("):
			idle[bubble] = true
		case strings.HasPrefix(state, "[IO wait"):
			if inNetwork[bubble] == nil {
				inNetwork[bubble] = map[string]string{}
			}
			inNetwork[bubble][id] = stack
		}
	}
	stuck := map[string]string{}
	for bubble, goroutines := range inNetwork {
		for id, stack := range goroutines {
			if idle[bubble] {
				stuck[id] = stack
			}
		}
	}
	return stuck
}
