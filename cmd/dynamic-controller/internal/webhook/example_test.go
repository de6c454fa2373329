package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/webhook"
)

// ExampleHandler sends a request for an invalid Blueprint.
func ExampleHandler() {
	review := func(_ context.Context, b *blueprint.Blueprint) (acceptance.Verdict, error) {
		return acceptance.Verdict{Reason: "Invalid", Message: "spec: " + b.Name + " is wrong", Permanent: true}, nil
	}
	request := httptest.NewRequest(http.MethodPost, webhook.Path, strings.NewReader(`{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"request": {
			"uid": "1", "operation": "CREATE",
			"kind": {"group": "platform.example.com", "version": "v1alpha1", "kind": "Blueprint"},
			"object": {"apiVersion": "platform.example.com/v1alpha1", "kind": "Blueprint", "metadata": {"name": "shops"}}
		}}`))
	request.Header.Set("Content-Type", "application/json")
	response := httptest.NewRecorder()
	webhook.NewHandler(logr.Discard(), review).ServeHTTP(response, request)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(response.Body.Bytes(), &answer); err != nil {
		panic(err)
	}
	fmt.Println(answer.Response.Allowed, answer.Response.Result.Message)
	// Output: false spec: shops is wrong
}
