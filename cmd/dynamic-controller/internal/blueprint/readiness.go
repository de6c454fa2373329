package blueprint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// This file determines whether a child without readyWhen is ready. The rules are those of kstatus
// (sigs.k8s.io/cli-utils) with these differences: A Job is ready when it is complete, not when it has started. A
// Service of type LoadBalancer is ready when it has an address. Conditions whose observedGeneration is outdated do not
// count. The result depends only on the object, not on the current time.

// wellKnown lists the kinds whose readiness depends on more than a Ready condition.
var wellKnown = map[schema.GroupKind]func(childObject) string{
	{Group: "apps", Kind: "Deployment"}:  childObject.deployment,
	{Group: "apps", Kind: "StatefulSet"}: childObject.statefulSet,
	{Group: "apps", Kind: "DaemonSet"}:   childObject.daemonSet,
	{Group: "batch", Kind: "Job"}:        childObject.job,
	{Kind: "Pod"}:                        childObject.pod,
	persistentVolumeClaim:                childObject.claim,
	{Kind: "Service"}:                    childObject.service,
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: childObject.definition,
}

var persistentVolumeClaim = schema.GroupKind{Kind: "PersistentVolumeClaim"}

// isReadableUnready reports whether other resources can read the child before it is ready. This is the case for a
// PersistentVolumeClaim because its storage class can delay binding until a Pod uses the claim, and the Pod can be a
// child that reads the claim.
func (r *resource) isReadableUnready() bool {
	return len(r.ready) == 0 && r.GVK.GroupKind() == persistentVolumeClaim
}

// waitsFor returns what an existing child without readyWhen is waiting for, or "" if it is ready.
func (r *resource) waitsFor(object *unstructured.Unstructured, isInstance bool) string {
	return waitsFor(childObject{object: object, hidesReasons: r.sensitive}, r.GVK.GroupKind(), isInstance)
}

// UnmetReadyWhen describes why an existing child of the resource with the given id, which has readyWhen, is not ready:
// its status is outdated, or it does not meet a condition. It returns "" if the child is ready. The error describes why
// the conditions cannot be evaluated.
func (i *Instance) UnmetReadyWhen(
	ctx context.Context, id string, object *unstructured.Unstructured,
) (unmet string, err error) {
	at := slices.IndexFunc(i.compiled.resources, func(r *resource) bool { return r.ID == id })
	if at < 0 {
		return "", fmt.Errorf("unknown resource %s", id)
	}
	r, e := i.compiled.resources[at], evaluation{self: i.self}
	if r.readsOutdated(object) {
		return notObserved, nil
	}
	for _, condition := range r.ready {
		value, err := e.run(ctx, condition, map[string]any{"self": i.self, r.readyVariable(): object.Object})
		is := false
		if err == nil {
			is, err = value.Bool()
		}
		var missing *expression.MissingError
		switch {
		case errors.As(err, &missing):
			return unmetText(condition, condition.explain(err)), nil
		case err != nil:
			return "", errors.New(condition.explain(err))
		case !is:
			return unmetText(condition, ""), nil
		}
	}
	return "", nil
}

// unmetText describes a condition of readyWhen that is not met. reason is why it cannot be evaluated, or empty.
func unmetText(condition *expressionAt, reason string) string {
	text := fmt.Sprintf("waiting for readyWhen %q", Cut(condition.String(), maxQuoted))
	if reason != "" {
		text += ": " + reason
	}
	return text
}

// WaitsFor returns what an object of any kind is waiting for, or "" if the object is ready, in the same way as for a
// child without readyWhen. The text can contain the reason of a condition.
func WaitsFor(object *unstructured.Unstructured, isInstance bool) string {
	return waitsFor(childObject{object: object}, object.GroupVersionKind().GroupKind(), isInstance)
}

// waitsFor returns what an object is waiting for. An object without a status is ready unless its kind is well known or
// it is an instance. The result should rarely change while the child becomes ready, because each change is written to
// the status of the instance.
func waitsFor(c childObject, kind schema.GroupKind, isInstance bool) string {
	if isOutdated(c.object) {
		return notObserved
	}
	for _, bad := range []string{"Stalled", "Reconciling"} {
		if c.isTrue(bad) {
			return "waiting for the condition " + bad + " to become False" + c.reason(bad)
		}
	}
	if check := wellKnown[kind]; check != nil {
		return check(c)
	}
	_, observed := c.condition("Ready")["observedGeneration"]
	switch {
	case isInstance && !observed:
		return notReconciled
	case c.condition("Ready") == nil:
		return ""
	}
	return c.waitForCondition("Ready")
}

// readsOutdated reports whether readyWhen reads the status of the object, and the status describes an earlier
// generation. Whatever such a status contains, it does not show that the object is ready.
func (r *resource) readsOutdated(object *unstructured.Unstructured) bool {
	return isOutdated(object) && slices.ContainsFunc(r.ready, func(condition *expressionAt) bool {
		return slices.ContainsFunc(condition.Paths(), func(p expression.Path) bool {
			return p[0] == r.readyVariable() && (len(p) == 1 || p[1] == "status") // paths end before ?
		})
	})
}

// isOutdated reports whether the status of an object describes an earlier generation. A status without
// observedGeneration is never outdated.
func isOutdated(object *unstructured.Unstructured) bool {
	observed, has := childObject{object: object}.number("status", "observedGeneration")
	return has && observed < object.GetGeneration()
}

const (
	notObserved   = "waiting for its controller to observe the newest generation"
	notReconciled = "waiting for its first reconcile"
	notUpdated    = "waiting for its replicas to be updated"
	notTerminated = "waiting for its old replicas to terminate"
)

// childObject is an existing object.
type childObject struct {
	object       *unstructured.Unstructured
	hidesReasons bool
}

func (c childObject) number(path ...string) (n int64, has bool) {
	n, has, err := unstructured.NestedInt64(c.object.Object, path...)
	return n, has && err == nil
}

// count returns a number, or 0 if it is absent.
func (c childObject) count(path ...string) int64 {
	n, _ := c.number(path...)
	return n
}

func (c childObject) text(path ...string) string {
	s, _, _ := unstructured.NestedString(c.object.Object, path...)
	return s
}

// replicas returns the desired number of replicas. The default is 1.
func (c childObject) replicas() int64 {
	if n, has := c.number("spec", "replicas"); has {
		return n
	}
	return 1
}

// condition returns the condition with the given type, or nil if it is absent.
func (c childObject) condition(kind string) map[string]any {
	list, _, _ := unstructured.NestedFieldNoCopy(c.object.Object, "status", "conditions")
	items, _ := list.([]any)
	for _, item := range items {
		if fields, _ := item.(map[string]any); fields["type"] == kind {
			return fields
		}
	}
	return nil
}

func (c childObject) isTrue(kind string) bool { return c.condition(kind)["status"] == "True" }

// reason returns the reason of a condition in parentheses. It returns "" for sensitive objects because a controller
// could copy data from a Secret into the reason.
func (c childObject) reason(kind string) string {
	reason, _ := c.condition(kind)["reason"].(string)
	if reason == "" || c.hidesReasons {
		return ""
	}
	return " (" + Cut(reason, maxQuoted) + ")"
}

func (c childObject) waitForCondition(kind string) string {
	observed, has := c.condition(kind)["observedGeneration"].(int64)
	switch {
	case has && observed < c.object.GetGeneration():
		return notObserved
	case c.isTrue(kind):
		return ""
	}
	return "waiting for the condition " + kind + c.reason(kind)
}

func (c childObject) deployment() string {
	_, observed := c.number("status", "observedGeneration")
	replicas, updated := c.replicas(), c.count("status", "updatedReplicas")
	switch {
	case !observed:
		return notObserved
	case c.condition("Progressing")["reason"] == "ProgressDeadlineExceeded":
		return "has exceeded its progress deadline"
	case updated < replicas:
		return notUpdated
	case c.count("status", "replicas") > updated:
		return notTerminated
	case c.count("status", "availableReplicas") < updated:
		return "waiting for its replicas to become available"
	}
	return ""
}

func (c childObject) statefulSet() string {
	const rollingUpdate = "RollingUpdate"
	_, observed := c.number("status", "observedGeneration")
	strategy := c.text("spec", "updateStrategy", "type")
	replicas, partition := c.replicas(), c.count("spec", "updateStrategy", "rollingUpdate", "partition")
	switch {
	case !observed:
		return notObserved
	case c.count("status", "readyReplicas") < replicas:
		return "waiting for its replicas to become ready"
	case c.count("status", "replicas") > replicas:
		return notTerminated
	case strategy != "" && strategy != rollingUpdate: // with OnDelete, users replace the Pods
		return ""
	case partition > 0 && c.count("status", "updatedReplicas") < replicas-partition:
		return notUpdated
	case partition == 0 && c.text("status", "currentRevision") != c.text("status", "updateRevision"):
		return notUpdated
	}
	return ""
}

func (c childObject) daemonSet() string {
	_, observed := c.number("status", "observedGeneration")
	wanted := c.count("status", "desiredNumberScheduled")
	switch {
	case !observed:
		return notObserved
	case c.text("spec", "updateStrategy", "type") != "OnDelete" && c.count("status", "updatedNumberScheduled") < wanted:
		return "waiting for its Pods on all nodes to be updated"
	case c.count("status", "numberAvailable") < wanted:
		return "waiting for its Pods on all nodes to become available"
	}
	return ""
}

func (c childObject) job() string {
	switch {
	case c.isTrue("Complete"):
		return ""
	case c.isTrue("Failed"):
		return "has failed" + c.reason("Failed")
	}
	return "waiting for the Job to complete"
}

func (c childObject) pod() string {
	switch c.text("status", "phase") {
	case "Succeeded":
		return ""
	case "Failed":
		return "has failed"
	}
	return c.waitForCondition("Ready")
}

func (c childObject) claim() string {
	if c.text("status", "phase") == "Bound" {
		return ""
	}
	return "waiting for the claim to be bound"
}

func (c childObject) service() string {
	ingress, _, _ := unstructured.NestedFieldNoCopy(c.object.Object, "status", "loadBalancer", "ingress")
	if list, _ := ingress.([]any); c.text("spec", "type") == "LoadBalancer" && len(list) == 0 {
		return "waiting for the address of the load balancer"
	}
	return ""
}

func (c childObject) definition() string {
	if c.condition("NamesAccepted")["status"] == "False" {
		return "waiting for the condition NamesAccepted" + c.reason("NamesAccepted")
	}
	return c.waitForCondition("Established")
}
