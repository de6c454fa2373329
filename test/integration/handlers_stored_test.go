package integration

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/handlers/children"
)

// rewrite registers a mutating webhook that replaces a value in the config maps of the test's namespace. It returns a
// function that removes the webhook.
func (h *harness) rewrite(path, value string) (remove func()) {
	h.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		patch, err := json.Marshal([]map[string]string{{"op": "replace", "path": path, "value": value}})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, Patch: patch, PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}
		_ = json.NewEncoder(w).Encode(review) // the API server reports a failure
	}))
	h.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	configurations := must(kubernetes.NewForConfig(h.config)).AdmissionregistrationV1().MutatingWebhookConfigurations()
	name := h.namespace + ".example.com"
	_, err := configurations.Create(h.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: name, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: certificate},
			NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"kubernetes.io/metadata.name": h.namespace},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE"},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"},
				},
			}},
		}},
	}, metav1.CreateOptions{})
	h.noError(err)
	return func() { h.noError(configurations.Delete(h.Context(), name, metav1.DeleteOptions{})) }
}

var errDiffers = errors.New("the outcome differs")

// A field that an admission webhook changes with each write is reported, and does not cause further writes.
func TestHandlers_FieldsOfAdmissionAreReported(t *testing.T) {
	t.Parallel()
	c := newConverging(t)
	remove := c.rewrite("/data/key", "of the webhook")
	child := newConfigMap(c.namespace, "page", "of the template")
	c.eventually("the API server calls the webhook", func() error {
		_, err := c.reconcile(child)
		if err == nil && c.result.Children[0].Reason != children.ReasonStoredDifferently {
			c.edit("user", configMaps, "page", `[{"op": "add", "path": "/data/key", "value": "drift"}]`)
			return errDiffers
		}
		return err
	})
	c.settle(child)
	if got := c.result.Children[0]; got.Outcome != children.OutcomeUnchanged || got.Field != "data.key" ||
		!got.IsApplied() {
		t.Errorf("got %+v", got)
	}
	remove()
	c.eventually("the webhook is gone", func() error {
		c.edit("user", configMaps, "page", `[{"op": "add", "path": "/data/other", "value": "x"}]`)
		c.noError(unstructured.SetNestedField(child.Object, c.get(configMaps, c.namespace, "page").GetResourceVersion(),
			"data", "key"))
		if _, err := c.reconcile(child); err != nil || c.result.Children[0].Reason != "" {
			return errDiffers
		}
		return nil
	})
	c.settle(child)
	if got := c.result.Children[0]; got.Reason != "" || got.Outcome != children.OutcomeUnchanged {
		t.Errorf("without the webhook, got %+v", got)
	}
}
