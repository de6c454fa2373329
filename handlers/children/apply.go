package children

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
)

// applyStages applies the stages in order. After a stage with a child that blocks later stages, the other children
// wait.
func (c *call) applyStages(ctx context.Context) error {
	blocked := -1
	for n, stage := range c.desired.stages {
		if blocked >= 0 {
			for _, child := range stage {
				child.await(ReasonEarlierStage, fmt.Sprintf("waits until stage %d of %d is complete",
					blocked+1, len(c.desired.stages)))
			}
			continue
		}
		if err := c.applyStage(ctx, stage); err != nil {
			return err
		}
		if slices.ContainsFunc(stage, (*child).blocks) {
			blocked = n
		}
	}
	return nil
}

// applyStage applies the children in a stage that do not have their desired state, according to the cache. It returns
// decide.ErrParentGone if the parent is gone.
func (c *call) applyStage(ctx context.Context, stage []*child) error {
	var groups [desire.Groups][]*child
	for _, child := range stage {
		switch err := cmp.Or(child.Err, c.checkRecorded(child)); {
		case err != nil:
			child.fail(err)
		case c.isSettled(ctx, child):
		default:
			groups[child.Group] = append(groups[child.Group], child)
		}
	}
	for _, group := range groups {
		c.remember(ctx, group)
		if err := c.applyAll(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

// isSettled reports whether a child has its desired state, according to the cache.
func (c *call) isSettled(ctx context.Context, child *child) bool {
	child.seen = c.see(ctx, child)
	if child.seen.Object == nil {
		return false
	}
	verdict, settled := decide.Settled(c.rules, child.desired, c.facts(child), child.seen.Object, child.known,
		c.namespaceUID, time.Now())
	if settled {
		child.conclude(verdict)
	}
	return settled
}

// facts returns what the call knows about the parent.
func (c *call) facts(child *child) decide.Facts {
	facts := decide.Facts{ParentExists: c.parentExists, Unrecorded: c.checkRecorded(child)}
	if child.NeedsWitness() {
		facts.Unwitnessed = c.witnessErr
	}
	return facts
}

// applyAll applies children concurrently. Those that do not exist are created after the parent has been read, once for
// all of them. It returns decide.ErrParentGone if the parent is gone.
func (c *call) applyAll(ctx context.Context, children []*child) error {
	for len(children) > 0 {
		c.inParallel(ctx, children, func(child *child) { c.apply(ctx, child) })
		if slices.ContainsFunc(children, func(child *child) bool {
			return errors.Is(child.result.Err, decide.ErrParentGone)
		}) {
			return decide.ErrParentGone
		}
		children = slices.DeleteFunc(slices.Clone(children), func(child *child) bool { return !child.needsParent })
		if len(children) == 0 {
			return nil
		}
		switch err := c.checkParent(ctx); {
		case errors.Is(err, decide.ErrParentGone):
			return err
		case err != nil:
			for _, child := range children {
				child.fail(err)
			}
			return nil
		}
	}
	return nil
}

// apply performs the operations of the decision about a child. If the child must be created, and the parent has not
// been read, apply sets child.needsParent, and must be called again. Children are applied concurrently: apart
// from the child, apply changes only what is safe for concurrent use.
func (c *call) apply(ctx context.Context, child *child) {
	seen := child.seen
	switch {
	case child.needsParent:
		seen = decide.Seen{}
	case seen.Object == nil: // the cache can have caught up in the meantime
		seen = c.see(ctx, child)
	}
	child.needsParent = false
	decision, recorded := c.begin(child, seen)
	defer decision.Stop()
	operation, more := decision.First()
	for more {
		if operation.Kind == decide.MayCreate {
			child.needsParent = true
			return
		}
		operation, more = decision.Next(c.performAndRecord(ctx, child, operation))
	}
	child.seen = decide.Seen{}
	verdict := decision.Verdict()
	if verdict.Object != nil {
		verdict.Object = c.written(child, verdict.Object)
	}
	if verdict.Terminating != nil {
		pending := pendingChild(c.doomed(inventory.Entry{Kind: child.kind}, child.id.GVR, verdict.Terminating))
		if !verdict.IsOwned {
			pending.Annotations = child.desired.Template.GetAnnotations()
		}
		child.pending = &pending
	}
	child.conclude(verdict)
	recorded(ctx)
}

// begin begins the decision about a child. recorded passes the decision to Config.RecordDecision, once it has a
// verdict.
func (c *call) begin(child *child, seen decide.Seen) (_ decision, recorded func(context.Context)) {
	facts, now := c.facts(child), time.Now()
	if c.config.RecordDecision == nil || c.planner != nil {
		return decide.Begin(c.rules, child.desired, facts, seen, child.known, now), func(context.Context) {}
	}
	recording := decide.Record(c.rules, child.desired, facts, seen, child.known, now)
	return recording, func(ctx context.Context) {
		if len(recording.Case.Exchanges) == 0 {
			return
		}
		data, err := json.Marshal(recording.Case)
		if err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Failed to record a decision", "child", child.id.String())
			return
		}
		c.config.RecordDecision(ctx, child.id, data)
	}
}

// decision is a decide.Decision, whether it is recorded or not.
type decision interface {
	First() (decide.Operation, bool)
	Next(answer decide.Answer) (decide.Operation, bool)
	Verdict() decide.Verdict
	Stop()
}

// performAndRecord performs an operation of a decision about a desired child, and records what it has shown or changed,
// so that a lagging cache does not hide it.
func (c *call) performAndRecord(ctx context.Context, child *child, operation decide.Operation) decide.Answer {
	answer := c.perform(ctx, target{child.id, child.kind, child.seen.Object}, operation)
	log := logr.FromContextOrDiscard(ctx).WithValues("child", child.id.String())
	switch kind := operation.Kind; {
	case kind == decide.Read && answer.Err == nil && answer.Object == nil && child.seen.Object != nil:
		c.own.recordDeleted(child.id, child.seen.Object)
	case kind == decide.Read && answer.Err == nil && answer.Object == nil:
		c.own.recordGone(child.id)
	case kind == decide.Delete && (answer.Err == nil || decide.IsGone(answer.Err)):
		c.own.recordDeleted(child.id, limitOf(operation))
		log.Info("Deleted a child", "uid", operation.UID, keyReason, operation.Reason)
	case answer.Err != nil || answer.Object == nil || !kind.IsWrite():
	default:
		c.written(child, answer.Object)
		switch kind {
		case decide.SetManagedFields:
			log.Info("Repaired the managed fields of a child", keyReason, operation.Reason, "items", operation.Items)
		case decide.HandOver:
			log.Info("Handed over a contested field of a child", "field", operation.Field, "manager", operation.Manager)
		}
	}
	return answer
}
