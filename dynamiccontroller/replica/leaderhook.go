package replica

import "context"

// leaderHook calls Options.OnNewLeader. It is a per-replica runnable, so that Run waits for the function and reports a
// panic, and so that the function cannot delay a renewal.
type leaderHook struct {
	call func(ctx context.Context, identity string)
	next chan string // the leader to report; has a buffer of one
}

const leaderHookName = "Options.OnNewLeader"

func newLeaderHook(call func(ctx context.Context, identity string)) *leaderHook {
	return &leaderHook{call: call, next: make(chan string, 1)}
}

// observe makes Run report the leader. It replaces a leader that has not been reported yet, and does not block. It is
// called by only one goroutine at a time.
func (h *leaderHook) observe(identity string) {
	select {
	case <-h.next:
	default:
	}
	h.next <- identity
}

func (h *leaderHook) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case identity := <-h.next:
			h.call(ctx, identity)
		}
	}
}
