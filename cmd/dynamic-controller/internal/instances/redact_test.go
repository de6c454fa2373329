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
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
)

func TestRedactedErrors(t *testing.T) {
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
			}), apierrors.IsInvalid, "422 Invalid; its message is not shown, because the object can contain data of a Secret " +
				"(spec.type: FieldValueNotSupported, data: FieldValueInvalid)",
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
		"an object that is gone": {apierrors.NewNotFound(resource, "a"), apierrors.IsNotFound, "404 NotFound"},
		"a retry": {
			apierrors.NewTooManyRequests("hunter2", 7),
			func(err error) bool { s, is := apierrors.SuggestsClientDelay(err); return is && s == 7 }, "429 TooManyRequests",
		},
		"an answer that is no status": {
			apierrors.NewGenericServerResponse(502, "patch", resource, "a", "hunter2", 0, true),
			apierrors.IsUnexpectedServerError, "502",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := redacted(fmt.Errorf("apply it: %w", c.err), withFields)
			if !c.is(got) {
				t.Errorf("it is no longer what it was: %#v", got)
			}
			if text := fmt.Sprintf("%v %+v %#v", got, got, got); strings.Contains(text, "hunter2") ||
				!strings.Contains(text, c.want) {
				t.Errorf("got %s, want %s", text, c.want)
			}
		})
	}
	if err := fmt.Errorf("apply it: %w", context.Canceled); redacted(err, withFields) != err {
		t.Error("an error of the client was changed")
	}
	if err := redacted(nil, withFields); err != nil {
		t.Errorf("success became %v", err)
	}
}

func TestErrorsOfSensitiveChildrenAreRedacted(t *testing.T) {
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
	server.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("hunter2"))
	})
	client := &childClient{Interface: server, compiled: compiled}
	for id, redacts := range map[string]bool{"vault": true, "a": false} {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion("v1")
		object.SetKind("Secret")
		object.SetName("a")
		object.SetAnnotations(map[string]string{resourceAnnotation: id})
		secrets := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
		_, err1 := secrets.Apply(t.Context(), "a", object, metav1.ApplyOptions{})
		_, err2 := secrets.Namespace("shop").Apply(t.Context(), "a", object, metav1.ApplyOptions{})
		for _, err := range []error{err1, err2} {
			if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "hunter2") == redacts {
				t.Errorf("%s: got %v", id, err)
			}
		}
	}
}

func TestErrorsOfPatchingAndDeletingSecretsAreRedacted(t *testing.T) {
	compiled, err := blueprint.Compile(&blueprint.Blueprint{Spec: chain(1).Spec}, blueprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := platformtest.NewServer(nil)
	server.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("hunter2"))
	})
	client := &childClient{Interface: server, compiled: compiled}
	for resource, redacts := range map[string]bool{"secrets": true, "configmaps": false} {
		objects := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource})
		_, patch := objects.Patch(t.Context(), "a", types.MergePatchType, nil, metav1.PatchOptions{})
		_, patchIn := objects.Namespace("shop").Patch(t.Context(), "a", types.MergePatchType, nil, metav1.PatchOptions{})
		for verb, err := range map[string]error{
			"patch": patch, "patch in a namespace": patchIn,
			"delete":                objects.Delete(t.Context(), "a", metav1.DeleteOptions{}),
			"delete in a namespace": objects.Namespace("shop").Delete(t.Context(), "a", metav1.DeleteOptions{}),
		} {
			if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "hunter2") == redacts {
				t.Errorf("%s %s: got %v", verb, resource, err)
			}
		}
	}
}
