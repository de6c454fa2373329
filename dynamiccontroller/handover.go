package dynamiccontroller

import (
	"context"
	"slices"

	"github.com/dynamic-controller/engine/internal/writes"
)

// ledgerFrom returns the ledger for a run: that of the leaders, which ctx carries, or that of this controller.
func (c *DynamicController) ledgerFrom(ctx context.Context) *writes.Ledger {
	if l := writes.LedgerFrom(ctx); l != nil && c.isServer(l.Server) {
		return l
	}
	return &c.ledger
}

// hold holds back the objects of a type whose last calls have written something that a cache lacks. These calls
// were made by another leader, or before in this process. Otherwise, a handler could repeat a write, because it reads
// the state before it. The group must be paused.
func (s *settling) hold(r *run, reg *registration) {
	if s.core.config.MaxWriteLag < 0 {
		return
	}
	written := map[string]*ownWrites{}
	for _, call := range r.ledger.CallsFor(reg.gvr.GroupResource()) {
		w := written[call.Object]
		if w == nil {
			w = s.newOwnWrites(reg, r, ObjectIdentifiers{NamespacedKey: call.Object, GVR: reg.gvr})
			w.fromSync = true
			written[call.Object] = w
		}
		if call.Noted {
			call.Writes = slices.Clone(call.Writes)
			s.core.setHistories(call.Writes)
		}
		w.add(call)
	}
	for key, w := range written {
		if reg.group.Hold(key) { // unless a handler for it is still running
			s.wait(w)
		}
	}
}
