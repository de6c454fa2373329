package children

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/act"
	"github.com/dynamic-controller/engine/handlers/children/internal/compare"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// Action is what an operation of a [Plan] does.
type Action string

// The actions. Each of them is one request, with two exceptions: AddFinalizer and RecordKinds that follow each other
// share a request, and Wait sends nothing.
const (
	ActionRecordKinds          Action = "RecordKinds"          // to the parent: kinds, namespaces, the witness
	ActionAddFinalizer         Action = "AddFinalizer"         // to the parent
	ActionRemoveFinalizer      Action = "RemoveFinalizer"      // from the parent, after which it is gone
	ActionCreateWitness        Action = "CreateWitness"        // the ConfigMap that shows how the parent is deleted
	ActionDeleteWitness        Action = "DeleteWitness"        // the ConfigMap is no longer needed
	ActionCreate               Action = "Create"               // an object that does not exist
	ActionApply                Action = "Apply"                // to the child
	ActionAdopt                Action = "Adopt"                // apply to an object that becomes a child
	ActionTransferOwnership    Action = "TransferOwnership"    // of fields of the child, in its managedFields
	ActionHandOver             Action = "HandOver"             // a field of the child, to another field manager
	ActionRemoveOwnerReference Action = "RemoveOwnerReference" // from a retained child
	ActionRemoveConfirmation   Action = "RemoveConfirmation"   // from a child that was restored
	ActionRelease              Action = "Release"              // a child that is kept although its parent is deleted
	ActionDelete               Action = "Delete"               // an object
	ActionWait                 Action = "Wait"                 // no request: something must happen first
)

// Plan is what Reconcile would do.
type Plan struct {
	// Operations are in the order in which Reconcile would perform them, followed by the waits. Within a stage, Reconcile
	// performs those for different children at the same time.
	Operations []PlannedOperation
	// Result is what Reconcile would return. Unless the API server has shown it in a dry run, a child that would be
	// written has no reason, such as StoredDifferently, and its Object is assumed.
	Result Result
}

// PlannedOperation is one request that Reconcile would send, or a wait.
type PlannedOperation struct {
	Action Action
	// ObjectIdentifiers identifies the object that is written: a child, the parent or the witness.
	dynamiccontroller.ObjectIdentifiers
	Kind schema.GroupKind
	// Reason describes why the operation is needed, for readers. Unlike ChildResult.Reason, it is not for programs.
	Reason string
	// UID and ResourceVersion are the preconditions of the request. They are empty for an object that does not exist, and
	// the ResourceVersion is empty if an earlier operation changes the object.
	UID             types.UID
	ResourceVersion string
	// Destroys describes what cannot be restored afterwards. It is empty for most operations.
	Destroys string
	// Changes lists the fields of the child that change. For Secrets, it has only the names of the changed fields, and the
	// values of labels.
	Changes []FieldChange
	// Err is how the API server refuses the operation in a dry run, or nil.
	Err error
	// KnownAfterApply is set if the operation depends on what the API server makes of an earlier one, which the plan can
	// only assume.
	KnownAfterApply bool
}

// FieldChange is a field that changes. Lists are compared as a whole.
type FieldChange struct {
	// Field is the path of the field, such as spec.replicas or metadata.labels["example.com/app"].
	Field string
	// From and To are the values, or nil if the field does not exist. They are nil for Secrets.
	From, To any
}

// PlanOptions configures [Reconciler.Plan].
type PlanOptions struct {
	// DryRun asks the API server, with dry runs, what it would store. It then validates the children, calls admission,
	// and shows defaults. A child in a namespace that does not exist yet is not validated. By default, the result of a
	// write is assumed: the applied fields, without those that leave the child, as far as the managedFields show them,
	// and with those of others.
	DryRun bool
}

// Plan returns what Reconcile would do for a parent now. It writes nothing, and changes neither the parent nor what the
// Reconciler remembers. Plan uses the same decisions as Reconcile. It reads what Reconcile would read, and also the
// objects that it plans to create, because the cache can lack objects that are not children. It calls neither
// Config.Reserve nor Desired.LeftBehind.
//
// A plan describes the next call of Reconcile only. For example, it contains the deletions of the last stage, and those
// of earlier stages follow once these objects are gone. Children of an earlier parent with the same name, which this
// run must still delete, are not included. The error is that of Reconcile, with the assumptions of the plan.
//
// Plan must be called like Reconcile: with the context of a handler for the parent, and never at the same time as
// another method for the same parent. Elsewhere, use a Reconciler of its own, which does not know what the run
// remembers.
func (r *Reconciler) Plan(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, desired Desired,
	options PlanOptions,
) (Plan, error) {
	ctx = logr.NewContext(ctx, logr.Discard())
	c := newCall(ctx, r.settings, id, parent.DeepCopy(), desired.As, r.copyOf(ctx, id))
	c.planner, c.isPlan = newPlanner(options), true
	result, err := c.reconcile(ctx, desired)
	for i, child := range result.Children {
		if child.IsApplied() && c.planner.objects[child.ObjectIdentifiers].isAssumed { // only the API server shows a reason
			child.Reason, child.Message, child.Field, child.Manager = "", "", "", ""
			result.Children[i] = child
		}
		if child.Outcome == OutcomeWaiting {
			c.planner.record(PlannedOperation{
				Action: ActionWait, ObjectIdentifiers: child.ObjectIdentifiers, Kind: child.Kind, Reason: child.Message,
			})
		}
	}
	return Plan{Operations: c.planner.operations, Result: result}, err
}

// planner takes the place of writes in a call for a plan.
type planner struct {
	dryRun bool

	mu         sync.Mutex // guards all fields below
	operations []PlannedOperation
	objects    map[childID]planned                    // the objects that the plan has changed
	seen       map[childID]*unstructured.Unstructured // the objects that were read
}

// planned is an object as it would be after the operations of a plan.
type planned struct {
	object    *unstructured.Unstructured // nil if it would be gone
	isAssumed bool                       // whether the API server has not confirmed it in a dry run
}

func (p *planner) record(operation PlannedOperation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.operations = append(p.operations, operation)
}

// stateOf returns an object as it would be, whether the plan has changed it, and the object before the next operation.
func (p *planner) stateOf(target target) (now planned, isPlanned bool, before *unstructured.Unstructured) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = target.object
	if seen, has := p.seen[target.id]; has {
		before = seen
	}
	if now, isPlanned = p.objects[target.id]; isPlanned {
		before = now.object
	}
	return now, isPlanned, before
}

// saw remembers an object that was read.
func (p *planner) saw(id childID, object *unstructured.Unstructured) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[id] = object
}

func (p *planner) set(id childID, object planned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.objects[id] = object
}

func newPlanner(options PlanOptions) *planner {
	return &planner{
		dryRun: options.DryRun, objects: map[childID]planned{}, seen: map[childID]*unstructured.Unstructured{},
	}
}

// perform plans an operation about a child.
func (p *planner) perform(
	ctx context.Context, child act.Child, target target, operation decide.Operation,
) decide.Answer {
	operation.After = 0
	now, isPlanned, before := p.stateOf(target)
	switch {
	case !operation.Kind.IsWrite() && isPlanned:
		return decide.Answer{Object: now.object.DeepCopy(), Err: assumedError(operation)}
	case !operation.Kind.IsWrite():
		return p.observe(ctx, child, operation)
	case operation.Kind == decide.Create && !isPlanned && !p.dryRun:
		existing := p.observe(ctx, child, decide.Operation{Kind: decide.Read})
		if existing.Err == nil && existing.Object != nil {
			existing.Err = apierrors.NewConflict(child.ID.GVR.GroupResource(), child.ID.Name(), errors.New("it exists"))
		}
		if existing.Err != nil {
			return decide.Answer{Err: existing.Err}
		}
	}
	step := PlannedOperation{
		Action: actionOf(operation), ObjectIdentifiers: child.ID, Kind: target.kind, Reason: string(operation.Reason),
		UID: operation.UID, ResourceVersion: operation.ResourceVersion, Destroys: destroys(operation),
		KnownAfterApply: isPlanned || p.isPlannedNamespace(child.ID.Namespace()),
	}
	if operation.Kind == decide.Apply {
		step.UID, step.ResourceVersion = operation.Object.GetUID(), operation.Object.GetResourceVersion()
	}
	if isPlanned {
		step.ResourceVersion = ""
	}
	answer, isAssumed := p.answer(ctx, child, before, operation, isPlanned)
	if step.Err = answer.Err; answer.Err == nil {
		step.Changes = changesOf(target.kind, before, answer.Object)
		p.set(child.ID, planned{answer.Object, isAssumed})
		answer.Object = answer.Object.DeepCopy()
	}
	p.record(step)
	return answer
}

// observe performs an operation that only observes, and remembers the object that it reads.
func (p *planner) observe(ctx context.Context, child act.Child, operation decide.Operation) decide.Answer {
	answer := child.Do(ctx, operation)
	if operation.Kind == decide.Read && answer.Err == nil {
		p.saw(child.ID, answer.Object)
	}
	return answer
}

// answer returns the result of a write, and whether it is only assumed.
func (p *planner) answer(
	ctx context.Context, child act.Child, before *unstructured.Unstructured, operation decide.Operation, isPlanned bool,
) (answer decide.Answer, isAssumed bool) {
	if p.dryRun && !isPlanned && !p.isPlannedNamespace(child.ID.Namespace()) {
		child.DryRun = true
		answer = child.Do(ctx, operation)
		if answer.Err == nil && answer.Object != nil && before != nil && !isSame(before, answer.Object) {
			answer.Object = merged(answer.Object, nil) // a dry run does not change the version
		}
		return answer, operation.Kind == decide.Delete
	}
	switch operation.Kind {
	case decide.Delete:
		return decide.Answer{}, true
	case decide.Create, decide.Apply:
		return decide.Answer{Object: predicted(before, operation)}, true
	}
	return decide.Answer{Object: merged(before, operation.Patch)}, true
}

// isPlannedNamespace reports whether the plan creates or deletes a namespace.
func (p *planner) isPlannedNamespace(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, isPlanned := p.objects[identify(corev1.SchemeGroupVersion.WithResource("namespaces"), "", name)]
	return isPlanned
}

// isSame compares an object with what a dry run returned. A cache can leave out the managedFields.
func isSame(before, after *unstructured.Unstructured) bool {
	if before.GetManagedFields() == nil {
		after = after.DeepCopy()
		after.SetManagedFields(nil)
	}
	return reflect.DeepEqual(before.Object, after.Object)
}

// assumedError returns the error of an observation that cannot be made before the plan is carried out.
func assumedError(operation decide.Operation) error {
	if operation.Kind == decide.Read {
		return nil
	}
	return errors.New("known after apply")
}

// predicted returns the probable result of an apply.
func predicted(before *unstructured.Unstructured, operation decide.Operation) *unstructured.Unstructured {
	if before == nil {
		return merged(nil, operation.Object.Object)
	}
	entries, err := ownership.Of(before)
	if err != nil {
		return merged(before, operation.Object.Object)
	}
	object := compare.Predict(entries, operation.Manager, operation.Object.Object, before.Object)
	now := merged(&unstructured.Unstructured{Object: object}, nil)
	now.SetUID(before.GetUID())
	now.SetResourceVersion(before.GetResourceVersion() + "+")
	return now
}

// merged returns an object with the fields of a merge patch. Its resourceVersion differs from that of the object, and
// is not one of the API server.
func merged(object *unstructured.Unstructured, patch map[string]any) *unstructured.Unstructured {
	if object == nil {
		object = &unstructured.Unstructured{Object: map[string]any{}}
	}
	version, uid := object.GetResourceVersion(), object.GetUID()
	result := &unstructured.Unstructured{Object: merge(object.DeepCopy().Object, asJSON(patch))}
	result.SetUID(uid)
	result.SetResourceVersion(version + "+")
	return result
}

// merge applies a JSON merge patch (RFC 7386).
func merge(object, patch map[string]any) map[string]any {
	if object == nil {
		object = map[string]any{}
	}
	for name, value := range patch {
		fields, isMap := value.(map[string]any)
		existing, _ := object[name].(map[string]any)
		switch {
		case value == nil:
			delete(object, name)
		case isMap:
			object[name] = merge(existing, fields)
		default:
			object[name] = value
		}
	}
	return object
}

// actionOf returns the action of an operation.
func actionOf(operation decide.Operation) Action {
	switch operation.Kind {
	case decide.Create:
		return ActionCreate
	case decide.Apply:
		if operation.Takes {
			return ActionAdopt
		}
		return ActionApply
	case decide.SetManagedFields:
		return ActionTransferOwnership
	case decide.HandOver:
		return ActionHandOver
	case decide.RemoveOwnerReference:
		return ActionRemoveOwnerReference
	case decide.RemoveConfirmation:
		return ActionRemoveConfirmation
	case decide.RemoveMark:
		return ActionRelease
	case decide.Delete:
		return ActionDelete
	default:
		return Action(operation.Kind.String())
	}
}

// destroys returns what an operation destroys.
func destroys(operation decide.Operation) string {
	switch operation.Kind {
	case decide.Delete:
		return "the object, with what it holds, and its dependents"
	case decide.SetManagedFields:
		if operation.Items > 0 {
			return fmt.Sprintf("%d items of lists, which the next apply removes", operation.Items)
		}
	}
	return ""
}

// changesOf returns the fields that an operation changes.
func changesOf(kind schema.GroupKind, before, after *unstructured.Unstructured) (changes []FieldChange) {
	if after == nil {
		return nil
	}
	from := map[string]any{}
	if before != nil {
		from = before.Object
	}
	changes = fieldChanges("", from, after.Object)
	if kind == desire.SecretKind.GroupKind() { // keys and annotations can be secret, too
		for i := range changes {
			field, _, _ := strings.Cut(changes[i].Field, ".")
			switch {
			case field != "metadata":
				changes[i] = FieldChange{Field: field}
			case strings.HasPrefix(changes[i].Field, "metadata.annotations"):
				changes[i] = FieldChange{Field: "metadata.annotations"}
			}
		}
		changes = slices.CompactFunc(changes, func(a, b FieldChange) bool { return a.Field == b.Field })
	}
	return slices.DeleteFunc(changes, func(change FieldChange) bool { return slices.Contains(unplanned, change.Field) })
}

// unplanned lists the fields that the API server sets with each write.
var unplanned = []string{
	"metadata.managedFields", "metadata.resourceVersion", "metadata.generation", "metadata.uid",
	"metadata.creationTimestamp",
}

// fieldChanges compares objects. Lists are compared as a whole.
func fieldChanges(path string, from, to map[string]any) (changes []FieldChange) {
	names := slices.Collect(maps.Keys(from))
	for name := range to {
		if _, has := from[name]; !has {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		at := below(path, name)
		before, isMap := from[name].(map[string]any)
		after, isAlsoMap := to[name].(map[string]any)
		switch {
		case reflect.DeepEqual(from[name], to[name]):
		case (isMap || from[name] == nil) && isAlsoMap && len(after) > 0:
			changes = append(changes, fieldChanges(at, before, after)...)
		default:
			changes = append(changes, FieldChange{at, copied(from[name]), copied(to[name])})
		}
	}
	return changes
}

// below returns the path of a field of the object at a path.
func below(path, name string) string {
	switch isPlain := plainName.MatchString(name); {
	case !isPlain:
		return path + "[" + strconv.Quote(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// plainName matches names that need no quotes.
var plainName = regexp.MustCompile(`^[-_A-Za-z0-9]+$`)

func copied(value any) any {
	if value == nil {
		return nil
	}
	return runtime.DeepCopyJSONValue(value)
}

// changeParent plans a change of the parent's metadata, and returns the parent as it would be.
func (p *planner) changeParent(
	id childID, parent *unstructured.Unstructured, metadata map[string]any,
) *unstructured.Unstructured {
	step := PlannedOperation{
		ObjectIdentifiers: id, Kind: parent.GroupVersionKind().GroupKind(), UID: parent.GetUID(),
		ResourceVersion: parent.GetResourceVersion(),
	}
	if _, isPlanned := p.objects[id]; isPlanned {
		step.ResourceVersion, step.KnownAfterApply = "", true
	}
	if _, adds := metadata["finalizers"]; adds {
		step.Action, step.Reason = ActionAddFinalizer, "Kubernetes does not delete all children with the parent"
		p.record(step)
	}
	if annotations, _ := metadata["annotations"].(map[string]any); len(annotations) > 0 {
		step.Action, step.Reason = ActionRecordKinds, "children are found by the kinds that the parent lists"
		p.record(step)
	}
	now := merged(parent, map[string]any{"metadata": metadata})
	p.set(id, planned{now, true})
	return now
}

// asJSON returns a patch with the types into which JSON is decoded.
func asJSON(patch map[string]any) (result map[string]any) {
	data, err := json.Marshal(patch)
	if err == nil {
		err = utiljson.Unmarshal(data, &result) // integers stay int64
	}
	if err != nil {
		panic(fmt.Sprintf("a patch that cannot be encoded: %v", err)) // it was made of JSON
	}
	return result
}

// planWitness returns an operation about the witness of the parent.
func (w *witnessing) planWitness(action Action, reason string) PlannedOperation {
	return PlannedOperation{
		Action: action, Reason: reason, Kind: schema.GroupKind{Kind: "ConfigMap"},
		ObjectIdentifiers: identify(corev1.SchemeGroupVersion.WithResource("configmaps"), w.parent.GetNamespace(),
			w.witnessName()),
	}
}
