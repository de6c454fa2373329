package handlers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestEncodeStringData(t *testing.T) {
	other := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Secret"}
	for name, c := range map[string]struct {
		kind         schema.GroupVersionKind
		secret, want string
		fails        string
	}{
		"texts become data":              {secretKind, `{"stringData":{"a":"x","b":""}}`, `{"data":{"a":"eA==","b":""}}`, ""},
		"they take precedence":           {secretKind, `{"stringData":{"a":"x"},"data":{"a":"eQ==","b":"eg=="}}`, `{"data":{"a":"eA==","b":"eg=="}}`, ""},
		"data alone stays as it is":      {secretKind, `{"data":{"a":"x"}}`, `{"data":{"a":"x"}}`, ""},
		"no texts":                       {secretKind, `{"stringData":{},"type":"Opaque"}`, `{"type":"Opaque"}`, ""},
		"null":                           {secretKind, `{"stringData":null}`, `{}`, ""},
		"a Secret of another group":      {other, `{"stringData":{"a":"x"}}`, `{"stringData":{"a":"x"}}`, ""},
		"a number among the texts":       {secretKind, `{"stringData":{"a":"x","port":5432}}`, "", `stringData: every value must be a string, and one is a number`},
		"a null among the texts":         {secretKind, `{"stringData":{"a":null}}`, "", `stringData: every value must be a string, and one is null`},
		"an object among the texts":      {secretKind, `{"stringData":{"a":{"secret":"x"}}}`, "", `stringData: every value must be a string, and one is an object`},
		"a list in place of texts":       {secretKind, `{"stringData":["x"]}`, "", `stringData: must be a map of strings, not a list`},
		"texts, and a string in data":    {secretKind, `{"stringData":{"a":"x"},"data":"x"}`, "", `data: must be a map of strings, not a string`},
		"texts, and data that is absent": {secretKind, `{"stringData":{"a":"x"},"data":null}`, `{"data":{"a":"eA=="}}`, ""},
	} {
		secret := &unstructured.Unstructured{Object: parse(t, c.secret)}
		err := encodeStringData(c.kind, secret)
		if c.fails != "" {
			if err == nil || err.Error() != c.fails {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		}
		if d := cmp.Diff(parse(t, c.want), secret.Object); err != nil || d != "" {
			t.Errorf("%s: %v, (-want +got):\n%s", name, err, d)
		}
	}
}

// The error names the child and the field, and not the value.
func TestChildren_InvalidStringDataIsRefused(t *testing.T) {
	server := newFakeServer(newWidget())
	children := newChildren(t, ChildrenConfig{Client: server})
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(secretKind, meta.RESTScopeNamespace)
	children.config.Mapper = mapper
	secret := newObject("v1", "Secret", "", "login")
	secret.Object["stringData"] = map[string]any{"pin": int64(1234)}
	_, err := children.Reconcile(t.Context(), first, newWidget(), stages(secret))
	if err == nil || !strings.Contains(err.Error(), "Secret login") || !strings.Contains(err.Error(), "stringData") || strings.Contains(err.Error(), "pin") || strings.Contains(err.Error(), "1234") {
		t.Errorf("got %v", err)
	}
}

func TestStaleStringData_KeysWithoutOwner(t *testing.T) {
	secret := newObject("v1", "Secret", "default", "s")
	secret.Object["data"] = map[string]any{"old": "eA==", "theirs": "eA==", "never": "eA=="}
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	secret.SetManagedFields([]metav1.ManagedFieldsEntry{
		entry("platform.example.com", metav1.ManagedFieldsOperationApply, `{"f:stringData":{"f:old":{},"f:theirs":{},"f:gone":{}}}`),
		entry("user", metav1.ManagedFieldsOperationUpdate, `{"f:data":{"f:theirs":{}}}`),
		entry("user", metav1.ManagedFieldsOperationApply, `{"f:stringData":{"f:never":{}}}`),
	})
	p := &pass{Children: newChildren(t, ChildrenConfig{Client: newFakeServer()})}
	if d := cmp.Diff([]string{"old"}, p.staleStringData(secret)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
