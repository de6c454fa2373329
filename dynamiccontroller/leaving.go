package dynamiccontroller

import "github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"

// leaving is a need that was released and has not left yet.
type leaving struct {
	reg  *registration
	need *typewatch.Need
	heir *typewatch.Need // that takes its place, if any
}

type leavings []leaving

// releaseLocked gives a need up. The registration is not over before it has left, which the caller sees to when it holds
// the lock no more.
func (c *DynamicController) releaseLocked(reg *registration, need, heir *typewatch.Need) leaving {
	reg.watchStarted()
	need.Release()
	return leaving{reg: reg, need: need, heir: heir}
}

// leave returns when nothing is told for the needs any more. Their watches end in the background. Heirs keep what was deleted
// since for a sink that they are given then, if there is to be one.
func (l leavings) leave(attach bool) {
	for _, one := range l {
		if !attach {
			one.need.Detach()
		}
		one.need.Leave(one.heir)
		if isClosed(one.need.Ended()) {
			one.reg.watchEnded()
			continue
		}
		go func() {
			<-one.need.Ended()
			one.reg.watchEnded()
		}()
	}
}

// end returns when the needs have left and their watches have ended.
func (l leavings) end() {
	for _, one := range l {
		one.need.Leave(one.heir)
	}
	for _, one := range l {
		<-one.need.Ended()
		one.reg.watchEnded()
	}
}
