package identity_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
)

// Example reads a child of an instance as the ServiceAccount of its Blueprint.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(serve)) // a fake API server
	defer server.Close()
	config := &rest.Config{Host: server.URL} // the platform uses Replica.FencedConfig
	identities, err := identity.New(config, identity.Options{Namespace: "platform-system", DefaultServiceAccount: "web"})
	if err != nil {
		fmt.Println(err)
		return
	}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	for _, blueprint := range []string{"websites", "flowers"} {
		ctx := context.Background()
		id, err := identities.Resolve(ctx, identity.Request{Blueprint: blueprint, Namespace: "shop"})
		var rejection *identity.Rejection
		if errors.As(err, &rejection) { // becomes a condition; other errors are retried
			fmt.Println(blueprint+":", rejection.Reason) // rejection.Message contains the remedy
			continue
		}
		client, err := identities.Client(id)
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = client.Resource(configMaps).Namespace("shop").Get(ctx, "page", metav1.GetOptions{})
		switch {
		case identity.IsImpersonationForbidden(err):
			fmt.Println(identity.ImpersonationRejection(id).Message)
		case apierrors.IsNotFound(err):
			fmt.Println(blueprint+": read as", id)
		}
	}
	// Output:
	// websites: read as ServiceAccount shop/web
	// flowers: ConsentMissing
}

func serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		fmt.Fprint(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview",
			"status":{"userInfo":{"username":"system:serviceaccount:platform-system:controller"}}}`)
	case "/api/v1/namespaces/shop/serviceaccounts/web":
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"web",
			"annotations":{"platform.example.com/allowed-blueprints":"websites"}}}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
	}
}
