package desire

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func parse(t *testing.T, text string) (value map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestEncodeStringData(t *testing.T) {
	const notStrings = "stringData: must be a map of strings"
	for name, c := range map[string]struct {
		secret, want string
		err          string
	}{
		"strings become data": {`{"stringData":{"a":"x","b":""}}`, `{"data":{"a":"eA==","b":""}}`, ""},
		"stringData takes precedence": {
			`{"stringData":{"a":"x"},"data":{"a":"eQ==","b":"eg=="}}`, `{"data":{"a":"eA==","b":"eg=="}}`, "",
		},
		"data without stringData": {`{"data":{"a":"x"}}`, `{"data":{"a":"x"}}`, ""},
		"empty":                   {`{"stringData":{},"type":"Opaque"}`, `{"type":"Opaque"}`, ""},
		"null":                    {`{"stringData":null}`, `{}`, ""},
		"another group": {
			`{"apiVersion":"example.com/v1","stringData":{"a":"x"}}`,
			`{"apiVersion":"example.com/v1","stringData":{"a":"x"}}`, "",
		},
		"a number":         {`{"stringData":{"a":"x","port":5432}}`, "", notStrings},
		"a null value":     {`{"stringData":{"a":null}}`, "", notStrings},
		"an object":        {`{"stringData":{"a":{"secret":"x"}}}`, "", notStrings},
		"a list":           {`{"stringData":["x"]}`, "", notStrings},
		"data is a string": {`{"stringData":{"a":"x"},"data":"x"}`, "", "data: must be a map of strings"},
		"data is null":     {`{"stringData":{"a":"x"},"data":null}`, `{"data":{"a":"eA=="}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			withKind := func(text string) map[string]any {
				object := parse(t, text)
				object["kind"] = "Secret"
				if object["apiVersion"] == nil {
					object["apiVersion"] = "v1"
				}
				return object
			}
			secret := &unstructured.Unstructured{Object: withKind(c.secret)}
			err := encodeStringData(secret)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("got %v, want %s", err, c.err)
				}
				return
			}
			if d := cmp.Diff(withKind(c.want), secret.Object); err != nil || d != "" {
				t.Errorf("got %v, (-want +got):\n%s", err, d)
			}
		})
	}
}
