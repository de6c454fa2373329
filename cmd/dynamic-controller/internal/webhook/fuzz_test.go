package webhook

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
)

// FuzzHandler checks that no request crashes the process, that each review of a Blueprint has a response with the UID
// of its request, and that only a verdict rejects the Blueprint.
func FuzzHandler(f *testing.F) {
	for _, spec := range []string{
		"{}", `[]`, `{"type": {"crd": "a"}, "resources": [{"id": "a", "template": {"a": 1}}]}`,
		`{"resources": [{"id": "a", "forEach": [{"b": "${self.c}"}], "readyWhen": ["each.d"], "template": {}}]}`,
		`{"resources": [{"id": "a", "externalRef": {"kind": "Pod", "metadata": {"selector": {"matchLabels": {"b": "c"}}}}}]}`,
		`{"type": {"status": {"a": "${b}"}, "conditions": [{"type": "C", "status": "true"}]}}`,
		strings.Repeat("[", 100) + strings.Repeat("]", 100),
	} {
		f.Add(creation(spec))
	}
	for _, fields := range []string{
		`"operation": "UPDATE", "object": 1, "oldObject": "a"`,
		`"operation": "UPDATE", "object": {"spec": {"a": 1}}, "oldObject": {"spec": {"a": 1}}`,
		`"operation": "CREATE", "object": null`,
		`"operation": "CREATE", "uid": "<\u0000\ud800>", "object": {}, "subResource": "status"`,
	} {
		f.Add(body(fields))
	}
	f.Add(body(`"operation": "CREATE"`) + body(`"operation": "CREATE"`))
	f.Add(`{"request": {"uid": "a"}, "request": null, ` + strings.TrimPrefix(creation("{}"), "{"))
	f.Fuzz(func(t *testing.T, text string) {
		var sent struct{ Request *struct{ UID types.UID } }
		isJSON := json.Unmarshal([]byte(text), &sent) == nil
		for refuses, review := range map[bool]ReviewFunc{false: accept, true: refuse} {
			w := post(NewHandler(logr.Discard(), review), text, "5s")
			switch w.Code {
			case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
				continue
			case http.StatusOK:
			default:
				t.Fatalf("got %d, %s", w.Code, w.Body)
			}
			got := parsed(t, w)
			if !isJSON || sent.Request == nil || got.UID != sent.Request.UID {
				t.Errorf("the UID is %q for %q", got.UID, text)
			}
			if isRefused := got.Result != nil && got.Result.Reason == "Invalid"; got.Allowed == isRefused ||
				isRefused && !refuses {
				t.Errorf("got %+v", got)
			}
		}
	})
}
