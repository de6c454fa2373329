package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Object is an object in a cluster, with its owner, children and events.
type Object struct {
	// Unstructured is the object. For a Secret, it contains only the metadata.
	*unstructured.Unstructured
	Resource schema.GroupResource
	// Owner is the Blueprint of an instance. It is nil if the object is not an instance.
	Owner *Owner
	// Children are the children of an instance, or the instances of a Blueprint.
	Children []*Object
	// Events are the events about the object, oldest first.
	Events []eventsv1.Event
	// Unread lists the objects that could not be read, and why.
	Unread []string
}

// Owner is the Blueprint of an instance.
type Owner struct {
	// Name is the name of the Blueprint. It is empty if it is unknown.
	Name string
	// Blueprint is nil if the Blueprint does not exist or cannot be read.
	Blueprint *unstructured.Unstructured
	// Unread describes why the Blueprint cannot be read. It is empty if the Blueprint does not exist.
	Unread string

	rules *readiness // set by compile
}

// State summarizes the state of an object.
type State string

// The states of objects.
const (
	Ready    State = "Ready"
	Waiting  State = "Waiting" // for something that can happen without help
	Failing  State = "Failing" // until someone fixes a problem
	Deleting State = "Deleting"
	Paused   State = "Paused"
	Unknown  State = "Unknown" // it cannot be found out without the platform
)

// Messages for objects that the platform has not reconciled.
const (
	notReconciled = "the platform has not reconciled it yet"
	notObserved   = "the platform has not reconciled its newest generation yet"
)

// IsBlueprint reports whether the object is a Blueprint.
func (o *Object) IsBlueprint() bool {
	return o.GroupVersionKind().GroupKind() == blueprint.GroupVersionKind.GroupKind()
}

// Name returns the kind and the name of the object, such as "Website shop/flowers".
func (o *Object) Name() string { return o.GetKind() + " " + o.key() }

func (o *Object) key() string {
	if namespace := o.GetNamespace(); namespace != "" {
		return namespace + "/" + o.GetName()
	}
	return o.GetName()
}

// plainName matches the names of almost all objects. Names of RBAC objects can contain other characters.
var plainName = regexp.MustCompile(`^` + subdomain + `$`)

// target returns the object as an argument for kubectl. A name that is not a DNS subdomain is quoted for the shell.
func (o *Object) target() string {
	text := o.Resource.String() + " " + o.GetName()
	if !plainName.MatchString(o.GetName()) {
		// With a slash, the name cannot be a flag.
		text = "'" + strings.ReplaceAll(o.Resource.String()+"/"+o.GetName(), "'", `'\''`) + "'"
	}
	if namespace := o.GetNamespace(); namespace != "" {
		text += " -n " + namespace
	}
	return text
}

// State returns the state of the object and, unless it is ready, a message.
func (o *Object) State() (state State, message string) {
	switch {
	case o.GetDeletionTimestamp() != nil:
		return Deleting, strings.TrimPrefix(instances.BlockedBy(o.blockers()), "; ")
	case o.IsBlueprint():
		return o.blueprintState()
	case o.Owner != nil:
		return o.instanceState()
	}
	switch message = blueprint.WaitsFor(o.Unstructured, false); {
	case message == "":
		return Ready, ""
	case strings.HasPrefix(message, "has "):
		return Failing, message
	}
	return Waiting, message
}

func (o *Object) blueprintState() (State, string) {
	if instances.IsPaused(o) {
		return Paused, ""
	}
	conditions := map[string]*metav1.Condition{}
	for _, kind := range []string{blueprint.Accepted, blueprint.TypeEstablished, blueprint.Serving} {
		switch c := instances.ConditionOf(o.Unstructured, kind); {
		case c == nil:
			return Waiting, notReconciled
		case c.ObservedGeneration != o.GetGeneration():
			return Waiting, notObserved
		default:
			conditions[kind] = c
		}
	}
	accepted, serving := conditions[blueprint.Accepted], conditions[blueprint.Serving]
	switch acceptance.StateOf(false, *accepted, *serving) {
	case acceptance.StateRejected:
		return Failing, text(accepted)
	case acceptance.StateUnknown:
		return Waiting, text(accepted)
	}
	for _, c := range []*metav1.Condition{conditions[blueprint.TypeEstablished], serving} {
		if c.Status != metav1.ConditionTrue {
			return Waiting, text(c)
		}
	}
	if c := instances.ConditionOf(o.Unstructured, blueprint.Progressing); c != nil && c.Status == metav1.ConditionFalse {
		return Failing, text(c)
	}
	if problems := o.servingProblems(); len(problems) > 0 {
		return Failing, problems[0].Reason + ": " + problems[0].Message
	}
	return Ready, instances.ConditionOf(o.Unstructured, blueprint.Serving).Message
}

func (o *Object) instanceState() (State, string) {
	ready, failing := instances.ReadyOf(o.Unstructured)
	switch {
	case o.pausedBy() != "":
		return Paused, ""
	case ready == nil:
		return Waiting, notReconciled
	case ready.ObservedGeneration != o.GetGeneration():
		return Waiting, notObserved
	case ready.Status == metav1.ConditionTrue:
		return Ready, ready.Message
	case failing:
		return Failing, text(ready)
	}
	return Waiting, text(ready)
}

// pausedBy returns "Blueprint" if the Blueprint is paused, "Instance" if only the instance is paused, and otherwise "".
func (o *Object) pausedBy() string {
	switch {
	case o.Owner != nil && o.Owner.Blueprint != nil && instances.IsPaused(o.Owner.Blueprint):
		return "Blueprint"
	case instances.IsPaused(o):
		return "Instance"
	}
	return ""
}

// blockers returns the finalizers that neither the platform nor Kubernetes removes.
func (o *Object) blockers() (finalizers []string) {
	own := []string{instances.ChildrenFinalizer, metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents,
		instances.Name + "/blueprint"}
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return slices.Contains(own, f) })
}

// sorted returns the children by stage, resource and name. The instances of a Blueprint are sorted by state: failing
// instances come first, and ready ones last.
func (o *Object) sorted() []*Object {
	rank := func(instance *Object) int {
		switch state, _ := instance.State(); state {
		case Failing:
			return -1
		case Ready:
			return 1
		}
		return 0
	}
	return slices.SortedFunc(slices.Values(o.Children), func(a, b *Object) int {
		if o.IsBlueprint() {
			return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name(), b.Name()))
		}
		idA, stageA := instances.ResourceOf(a)
		idB, stageB := instances.ResourceOf(b)
		return cmp.Or(cmp.Compare(stageA, stageB), strings.Compare(idA, idB), strings.Compare(a.Name(), b.Name()))
	})
}

func text(c *metav1.Condition) string { return fmt.Sprintf("%s: %s", c.Reason, c.Message) }
