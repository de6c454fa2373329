package dynamiccontroller

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

const (
	// problemBurst and problemInterval limit the lines about problems of all watches: an outage concerns all types.
	problemBurst    = 20
	problemInterval = 30 * time.Second
	// repeatAfter is the time after which a problem of the same kind is logged again for the same watch.
	repeatAfter = 10 * time.Minute
)

// hintNotFound is logged with the API server's message, which does not name the type.
const hintNotFound = "the API server does not serve this type: is it installed, and are its group, version and " +
	"plural right?"

// problemLog logs the states of watches. Problems are logged at V(0), but only as many as someone can read. All others,
// and all other states, are logged at V(1).
type problemLog struct {
	logOf func(schema.GroupVersionResource) logr.Logger

	mu         sync.Mutex // guards the fields below
	limiter    *rate.Limiter
	suppressed int // problems that were logged at V(1) since the last line at V(0)
	logged     map[typewatch.Key]loggedProblem
}

// loggedProblem is the last problem of a watch that was logged at V(0).
type loggedProblem struct {
	state TypeState
	at    time.Time
	over  bool
}

func newProblemLog(logOf func(schema.GroupVersionResource) logr.Logger) *problemLog {
	return &problemLog{
		logOf: logOf, limiter: rate.NewLimiter(rate.Every(problemInterval), problemBurst),
		logged: map[typewatch.Key]loggedProblem{},
	}
}

// observe logs the new state of a watch. Watches with the same key, which have transforms, share their lines.
func (l *problemLog) observe(key typewatch.Key, s typewatch.State) {
	log, state := l.logOf(key.GVR), TypeState(s.Phase)
	switch state {
	case TypeForbidden, TypeNotFound, TypeFailing:
		l.logProblem(log, key, state, s.Message)
		return
	case TypeSynced:
		if l.markOver(key) {
			log.Info("Watch recovered", keyState, state)
			return
		}
	case TypeStopped:
		l.forget(key)
	}
	log.V(1).Info("Watch changed state", keyState, state)
}

func (l *problemLog) logProblem(log logr.Logger, key typewatch.Key, state TypeState, message string) {
	values := []any{keyState, state, keyMessage, message}
	isShown, suppressed := l.admit(key, state)
	if suppressed > 0 {
		values = append(values, "suppressed", suppressed)
	}
	switch {
	case !isShown:
		log.V(1).Info("Watch failed, will retry", values...)
	case state == TypeForbidden:
		log.Error(nil, "Watch forbidden, will retry", values...)
	case state == TypeNotFound:
		log.Info("Watch failed, will retry", append(values, "hint", hintNotFound)...)
	default:
		log.Info("Watch failed, will retry", values...)
	}
}

// admit reports whether a problem is logged at V(0), and how many were not since the last one.
func (l *problemLog) admit(key typewatch.Key, state TypeState) (isShown bool, suppressed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch last, was := l.logged[key]; {
	case was && last.state == state && now.Sub(last.at) < repeatAfter:
		return false, 0
	case !l.limiter.AllowN(now, 1):
		l.suppressed++
		return false, 0
	}
	l.logged[key] = loggedProblem{state: state, at: now}
	suppressed, l.suppressed = l.suppressed, 0
	return true, suppressed
}

// markOver records that the problem of a watch is over. It returns false if no problem was logged.
func (l *problemLog) markOver(key typewatch.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, was := l.logged[key]
	if !was || last.over {
		return false
	}
	last.over = true
	l.logged[key] = last
	return true
}

func (l *problemLog) forget(key typewatch.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.logged, key)
}
