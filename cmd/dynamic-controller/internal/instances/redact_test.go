package instances

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/test/platformtest"
)

func TestRedacted(t *testing.T) {
	services := schema.GroupKind{Kind: "Service"}
	resource := schema.GroupResource{Resource: "services"}
	withFields := func(f string) string { return strings.Split(f, "[")[0] }
	for name, c := range map[string]struct {
		err  error
		is   func(error) bool
		want string
	}{
		"an invalid value": {
			apierrors.NewInvalid(services, "a", field.ErrorList{
				field.NotSupported(field.NewPath("spec", "type"), "hunter2", []string{"ClusterIP"}),
				field.Invalid(field.NewPath("data").Key("hunter2"), "hunter2", "no"),
			}), apierrors.IsInvalid, "422 Invalid; its message is not shown, because the object can contain data from a " +
				"Secret (spec.type: FieldValueNotSupported, data: FieldValueInvalid)",
		},
		"a value of another type": {
			&apierrors.StatusError{
				ErrStatus: metav1.Status{
					Code:    500,
					Message: "failed to create typed patch object: .spec.a: expected numeric, got hunter2",
				},
			},
			func(err error) bool { return apierrors.ReasonForError(err) == "" }, "500 Unknown",
		},
		"a conflict": {
			apierrors.NewConflict(resource, "a", errors.New("hunter2")), apierrors.IsConflict, "409 Conflict",
		},
		"a denial": {
			apierrors.NewForbidden(resource, "a", errors.New("the webhook says hunter2")), apierrors.IsForbidden,
			"403 Forbidden",
		},
		"an object that does not exist": {apierrors.NewNotFound(resource, "a"), apierrors.IsNotFound, "404 NotFound"},
		"a retry": {
			apierrors.NewTooManyRequests("hunter2", 7),
			func(err error) bool { s, is := apierrors.SuggestsClientDelay(err); return is && s == 7 }, "429 TooManyRequests",
		},
		"a response that is not a Status": {
			apierrors.NewGenericServerResponse(502, "patch", resource, "a", "hunter2", 0, true),
			apierrors.IsUnexpectedServerError, "502",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := redacted(fmt.Errorf("apply it: %w", c.err), withFields)
			if !c.is(got) {
				t.Errorf("the error lost its type: %#v", got)
			}
			if text := fmt.Sprintf("%v %+v %#v", got, got, got); strings.Contains(text, "hunter2") ||
				!strings.Contains(text, c.want) {
				t.Errorf("got %s, want %s", text, c.want)
			}
		})
	}
	if err := fmt.Errorf("apply it: %w", context.Canceled); redacted(err, withFields) != err {
		t.Error("a client error was changed")
	}
	if err := redacted(nil, withFields); err != nil {
		t.Errorf("redacted(nil) = %v", err)
	}
}

func TestRedacted_ErrorsOfSensitiveChildren(t *testing.T) {
	b := chain(1)
	secret := blueprint.Resource{ID: "vault", Template: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "a"},
		"data": map[string]any{"k": "${self.metadata.name}"},
	}}
	b.Spec.Resources = append(b.Spec.Resources, secret)
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := platformtest.NewServer(nil)
	server.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("hunter2"))
	})
	client := &childClient{Interface: server, compiled: compiled, requests: newRequests()}
	for id, redacts := range map[string]bool{"vault": true, "a": false} {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion("v1")
		object.SetKind("Secret")
		object.SetName("a")
		object.SetAnnotations(map[string]string{resourceAnnotation: id})
		secrets := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
		_, err1 := secrets.Apply(t.Context(), "a", object, metav1.ApplyOptions{})
		_, err2 := secrets.Namespace("shop").Apply(t.Context(), "a", object, metav1.ApplyOptions{})
		_, err3 := secrets.Namespace("shop").Create(t.Context(), object, metav1.CreateOptions{})
		for _, err := range []error{err1, err2, err3} {
			if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "hunter2") == redacts {
				t.Errorf("%s: got %v", id, err)
			}
		}
	}
}

// The API server can quote a patched or deleted object. Other revisions can have written anything into it.
func TestRedacted_ErrorsOfPatchAndDelete(t *testing.T) {
	b := chain(1)
	vault := newTemplate("vault", "vault", nil)
	vault.Template["kind"] = "Secret"
	page := newTemplate("page", "page", map[string]any{"data": map[string]any{"a": "${string(vault.data.key)}"}})
	b.Spec.Resources = append(b.Spec.Resources, vault, page)
	mixed, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := blueprint.Compile(chain(1), blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	children := []Child{
		{GVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, GVR: gvrOf("configmaps")},
		{GVK: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, GVR: gvrOf("secrets")},
	}
	for name, test := range map[string]struct {
		compiled *blueprint.Compiled
		children []Child
		resource string
		redacts  bool
	}{
		"a Secret": {mixed, children, "secrets", true},
		"a type of a child that can contain a Secret": {mixed, children, "configmaps", true},
		"a type without such children":                {plain, children[:1], "configmaps", false},
		"a Secret of another revision":                {plain, children[:1], "secrets", true},
		"a type of another revision":                  {plain, children[:1], "pods", true},
		"only deletions are processed":                {nil, nil, "configmaps", true},
	} {
		t.Run(name, func(t *testing.T) {
			server := platformtest.NewServer(nil)
			message := "hunter2"
			server.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "a", errors.New(message))
			})
			client := &childClient{Interface: server, compiled: test.compiled, children: test.children, requests: newRequests()}
			objects := client.Resource(gvrOf(test.resource))
			for _, o := range []dynamic.ResourceInterface{objects, objects.Namespace("shop")} {
				message = "hunter2"
				_, patch := o.Patch(t.Context(), "a", types.MergePatchType, nil, metav1.PatchOptions{})
				for _, err := range []error{patch, o.Delete(t.Context(), "a", metav1.DeleteOptions{})} {
					if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "hunter2") == test.redacts {
						t.Errorf("got %v", err)
					}
				}
				// The authorizer does not see the object, so its message is kept.
				message = `User "web" cannot delete resource "x" in API group "" in the namespace "shop"`
				if err := o.Delete(t.Context(), "a", metav1.DeleteOptions{}); !strings.Contains(err.Error(), message) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

func gvrOf(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}
