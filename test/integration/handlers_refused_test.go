package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/handlers/children"
)

// stages reconciles the stages, and returns the result of the first child.
func (c *converging) stages(stages ...[]children.Child) children.ChildResult {
	c.Helper()
	var err error
	c.result, err = c.reconciler.Reconcile(c.Context(), c.id(c.parents, "p"), c.parent, children.Desired{Stages: stages})
	if len(c.result.Children) == 0 {
		c.Fatalf("no result: %v", err)
	}
	return c.result.Children[0]
}

// describe returns the outcome, the reason and the message of a child.
func describe(child children.ChildResult) string {
	return fmt.Sprintf("%s %s %s", child.Outcome, child.Reason, child.Message)
}

// isRefused returns an error if a child is not refused for the reason.
func isRefused(child children.ChildResult, reason string) error {
	if child.Outcome != children.OutcomeRefused || child.Reason != reason || child.Err == nil {
		return fmt.Errorf("got %.300s, want Refused %s", describe(child), reason)
	}
	return nil
}

// A child whose desired state is wrong is refused with a message that names the problem. If the child exists, it delays
// neither later stages nor pruning. If it does not, later stages wait.
func TestHandlers_WrongChildrenAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ containers, want string }{
		"two variables with a name": {
			`[{name: web, image: nginx, env: [{name: A, value: "1"}, {name: A, value: "2"}]}]`,
			`duplicate entries for key [name="A"]`,
		},
		"two ports with a number": {
			`[{name: web, image: nginx, ports: [{containerPort: 80}, {containerPort: 80}]}]`, "duplicate entries for key",
		},
		"an item without its key":    {`[{name: web, image: nginx, env: [{value: "1"}]}]`, "name"},
		"an unknown field":           {`[{name: web, image: nginx, imagge: x}]`, "imagge"},
		"a text instead of a number": {`[{name: web, image: nginx, ports: [{containerPort: "80"}]}]`, "containerPort"},
		"a map instead of a list":    {`[{name: web, image: nginx, env: {A: "1"}}]`, "env"},
		"a number instead of a text": {`[{name: web, image: nginx, env: [{name: A, value: 1}]}]`, "value"},
		"a text instead of a map":    {`[{name: web, image: nginx, resources: large}]`, "resources"},
		"an empty image":             {`[{name: web, image: ""}]`, "image"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConverging(t)
			good, wrong := c.parse(shopDeployment), c.parse(shopDeployment)
			var list []any
			c.noError(yaml.Unmarshal([]byte(test.containers), &list))
			c.noError(unstructured.SetNestedField(wrong.Object, list, containersPath...))
			c.stages(children.Stage(good, newConfigMap("", "old", "x")), nil)

			later := newConfigMap("", "later", "x")
			child := c.stages(children.Stage(wrong), children.Stage(later))
			c.noError(isRefused(child, children.ReasonInvalid))
			if !strings.Contains(child.Message, test.want) {
				t.Errorf("the message %q lacks %q", child.Message, test.want)
			}
			c.eventually("the child in a later stage exists, and the undesired one is gone", func() error {
				c.stages(children.Stage(wrong), children.Stage(later))
				if c.get(configMaps, c.namespace, "later") == nil || c.get(configMaps, c.namespace, "old") != nil {
					return errors.New("not yet")
				}
				return nil
			})
			before := c.writes.Load()
			c.noError(isRefused(c.stages(children.Stage(wrong), children.Stage(later)), children.ReasonInvalid))
			if sent := c.writes.Load() - before; sent != 1 {
				t.Errorf("a later reconcile sent %d writes", sent)
			}

			fresh, last := wrong.DeepCopy(), newConfigMap("", "last", "x")
			fresh.SetName("fresh")
			child = c.stages(children.Stage(fresh), children.Stage(last))
			c.noError(isRefused(child, children.ReasonInvalid))
			if c.get(configMaps, c.namespace, "last") != nil || c.result.Children[1].Outcome != children.OutcomeWaiting {
				t.Errorf("the later stage did not wait for a child that does not exist: %s", describe(c.result.Children[1]))
			}
			c.stages(children.Stage(good), children.Stage(later))
			if child := c.stages(children.Stage(good), children.Stage(later)); !child.IsApplied() {
				t.Errorf("the right child is not applied: %s", describe(child))
			}
		})
	}
}

// Objects beyond the limits of the API server and of etcd are refused.
func TestHandlers_TooLargeChildrenAreRefused(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	gadget := func(size int) *unstructured.Unstructured {
		return newObject(c.gadgets, "Gadget", "", "g", map[string]any{"x": strings.Repeat("x", size)})
	}
	old, later := newConfigMap("", "old", "x"), newConfigMap("", "later", "x")
	for name, size := range map[string]int{
		"a request beyond etcd's limit": 1_600_000, "a message beyond etcd's limit": 2_900_000,
		"a request beyond the API server's limit": 3_200_000,
	} {
		c.stages(children.Stage(gadget(1), old), nil)
		result := c.stages(children.Stage(gadget(size)), children.Stage(later))
		if err := isRefused(result, children.ReasonTooLarge); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.eventually("the child in a later stage exists, and the undesired one is gone", func() error {
			c.stages(children.Stage(gadget(size)), children.Stage(later))
			if c.get(configMaps, c.namespace, "later") == nil || c.get(configMaps, c.namespace, "old") != nil {
				return errors.New("not yet")
			}
			return nil
		})
	}
}

// A policy that forbids the update of a child that exists delays neither later stages nor pruning.
func TestHandlers_ForbiddenUpdatesDelayNothing(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	admission := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	name := "frozen-" + c.namespace
	for resource, text := range map[string]string{
		"validatingadmissionpolicies": `
kind: ValidatingAdmissionPolicy
metadata: {name: ` + name + `}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [configmaps]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + c.namespace + `}}
  validations: [{expression: "object.metadata.name != 'frozen'", reason: Forbidden, message: "frozen by a policy"}]
`,
		"validatingadmissionpolicybindings": `
kind: ValidatingAdmissionPolicyBinding
metadata: {name: ` + name + `}
spec: {policyName: ` + name + `, validationActions: [Deny]}
`,
	} {
		object, gvr := c.parse(text), admission.WithResource(resource)
		object.SetAPIVersion(admission.String())
		c.put(gvr, object)
		t.Cleanup(func() {
			if err := c.client.Resource(gvr).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	later := newConfigMap("", "later", "x")
	c.stages(children.Stage(newConfigMap("", "frozen", "x"), newConfigMap("", "old", "x")), nil)
	c.eventually("the policy is active", func() error {
		frozen := c.get(configMaps, c.namespace, "frozen")
		frozen.Object["data"] = map[string]any{"other": "x"}
		_, err := c.in(configMaps, c.namespace).Update(t.Context(), frozen, metav1.UpdateOptions{DryRun: []string{"All"}})
		if err == nil {
			return errors.New("the update was accepted")
		}
		return nil
	})
	c.eventually("the child in a later stage exists, and the undesired one is gone", func() error {
		c.noError(isRefused(c.stages(children.Stage(newConfigMap("", "frozen", "y")), children.Stage(later)),
			string(metav1.StatusReasonForbidden)))
		if c.get(configMaps, c.namespace, "later") == nil || c.get(configMaps, c.namespace, "old") != nil {
			return errors.New("not yet")
		}
		return nil
	})
}

// An error of the storage looks like a wrong child: 500 without a reason. The child has failed, and later stages wait.
func TestHandlers_StorageErrorsAreNotRefusals(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	var down, dryRunsToo atomic.Bool
	var dryRuns atomic.Int64
	config := intercepted(c.config, func(r *http.Request, send send) (*http.Response, error) {
		isDryRun := slices.Contains(r.URL.Query()["dryRun"], metav1.DryRunAll)
		if isDryRun {
			dryRuns.Add(1)
		}
		if !down.Load() || !strings.HasSuffix(r.URL.Path, "/configmaps/child") || !isWrite(r) ||
			isDryRun && !dryRunsToo.Load() {
			return send(r)
		}
		status := `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,` +
			`"message":"etcdserver: request timed out"}`
		return &http.Response{
			StatusCode: http.StatusInternalServerError, Request: r, Body: io.NopCloser(bytes.NewBufferString(status)),
			Header: http.Header{"Content-Type": {"application/json"}},
		}, nil
	})
	c.reconciler = c.newReconciler(children.Config{Client: must(dynamic.NewForConfig(config))})
	later := newConfigMap("", "later", "x")
	c.stages(children.Stage(newConfigMap("", "child", "x")), nil)
	down.Store(true)
	for _, tooDry := range []bool{false, true} {
		dryRunsToo.Store(tooDry)
		child := c.stages(children.Stage(newConfigMap("", "child", "y")), children.Stage(later))
		if child.Outcome != children.OutcomeFailed || c.result.Children[1].Outcome != children.OutcomeWaiting {
			t.Errorf("got %s and %s", describe(child), describe(c.result.Children[1]))
		}
	}
	if n := dryRuns.Load(); n == 0 || n > 3 {
		t.Errorf("%d dry runs were sent", n)
	}
	down.Store(false)
	if child := c.stages(children.Stage(newConfigMap("", "child", "y")), children.Stage(later)); !child.IsApplied() {
		t.Errorf("at the end: %s", describe(child))
	}
}
