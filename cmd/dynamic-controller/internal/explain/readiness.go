package explain

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// readiness evaluates the readiness of children with the rules of their Blueprint, as the platform does. The states of
// children are not taken from the message of the instance, which is shortened and names no objects of collections.
type readiness struct {
	compiled *blueprint.Compiled // nil if the rules are not known
	spec     blueprint.Spec
}

// compile returns the rules of a Blueprint. They are compiled once.
func (o *Owner) compile() *readiness {
	if o.rules != nil {
		return o.rules
	}
	o.rules = &readiness{}
	if o.Blueprint == nil {
		return o.rules
	}
	b, err := blueprint.FromUnstructured(o.Blueprint)
	if err != nil {
		return o.rules
	}
	o.rules.spec = b.Spec
	if compiled, err := blueprint.Compile(b, blueprint.Options{}); err == nil {
		o.rules.compiled = compiled
	}
	return o.rules
}

// usesRulesOf reports whether the instance uses the newest spec of its Blueprint, and not an earlier revision.
func (o *Object) usesRulesOf(b *unstructured.Unstructured) bool {
	served, has, _ := unstructured.NestedInt64(b.Object, "status", "served", "generation")
	serves, _, _ := unstructured.NestedString(b.Object, "status", "served", "revision")
	uses, reports, _ := unstructured.NestedString(o.Object, "status", "revision")
	return (!has || served == b.GetGeneration()) && (!reports || !has || uses == serves)
}

// childState returns the state of a child of the object. For an instance, it takes readyWhen into account.
func (o *Object) childState(child *Object) (State, string) {
	state, message := child.State()
	id, _ := instances.ResourceOf(child)
	if o.Owner == nil || id == "" || state == Deleting || state == Paused {
		return state, message
	}
	rules := o.Owner.compile()
	resource := rules.resource(id)
	own, _ := o.State()
	problem := ""
	switch {
	case resource != nil && len(resource.ReadyWhen) == 0:
		return state, message
	case own == Ready && state == Waiting: // the platform has evaluated readyWhen
		return Ready, message
	case own == Ready || resource == nil:
		return state, message
	case rules.compiled == nil:
		problem = "this command cannot compile the Blueprint"
	case !o.usesRulesOf(o.Owner.Blueprint):
		problem = "the instance uses an earlier revision of the Blueprint"
	case child.GetKind() == "Secret" && child.GroupVersionKind().Group == "":
		problem = "the content of Secrets is not read"
	default:
		waits, err := rules.compiled.Instance(o.Unstructured).UnmetReadyWhen(context.Background(), id, child.Unstructured)
		switch {
		case err != nil:
			problem = err.Error()
		case waits != "":
			return Waiting, waits
		default:
			return Ready, ""
		}
	}
	return Unknown, "readyWhen cannot be evaluated here: " + problem
}

// resource returns the resource with the given id, or nil if it is unknown.
func (r *readiness) resource(id string) *blueprint.Resource {
	for i := range r.spec.Resources {
		if r.spec.Resources[i].ID == id {
			return &r.spec.Resources[i]
		}
	}
	return nil
}

// waitingAction returns what to do about an instance that waits for too long. It depends on the resources of the
// Blueprint and on the states of the children.
func waitingAction(o *Object) string {
	if o.Owner == nil || o.Owner.Blueprint == nil {
		return ""
	}
	rules := o.Owner.compile()
	var unmet, unready, references []string
	for _, child := range o.sorted() {
		id, _ := instances.ResourceOf(child)
		state, _ := o.childState(child)
		resource := rules.resource(id)
		switch {
		case state == Ready || resource == nil:
		case len(resource.ReadyWhen) > 0:
			unmet = appendNew(unmet, id)
		default:
			unready = appendNew(unready, child.Name())
		}
	}
	for _, r := range rules.spec.Resources {
		if r.ExternalRef != nil {
			references = append(references, r.ID)
		}
	}
	var actions []string
	if len(unmet) > 0 {
		actions = append(actions, "compare readyWhen of "+listed(unmet)+" in the Blueprint with the objects")
	}
	if len(unready) > 0 {
		actions = append(actions, "look at "+listed(unready))
	}
	if len(references) > 0 {
		actions = append(actions, fmt.Sprintf("create the object in the message if it does not exist, or correct the "+
			"externalRef of %s", listed(references)))
	}
	if len(actions) == 0 {
		actions = append(actions, "find out what should create the value or the object in the message")
	}
	return "wait. If it takes too long, " + strings.Join(actions, "; ")
}

func appendNew(all []string, text string) []string {
	for _, known := range all {
		if known == text {
			return all
		}
	}
	return append(all, text)
}

// listed names the first few items. Ids and names cannot be commands.
func listed(items []string) string {
	const most = 3
	if more := len(items) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:most], ", "), more)
	}
	return strings.Join(items, ", ")
}
