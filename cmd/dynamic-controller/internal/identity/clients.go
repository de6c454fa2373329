package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/serverfence"
)

// Client returns a client that acts as the identity. All clients share connections and one rate limiter.
func (m *Manager) Client(id Identity) (dynamic.Interface, error) {
	if client, found := m.clients.Get(id); found {
		return client.(dynamic.Interface), nil
	}
	if !id.IsPlatform() && !id.isValid() {
		return nil, fmt.Errorf("%s: invalid name", id)
	}
	client, err := dynamic.NewForConfigAndClient(m.config, m.httpClient(id))
	if err != nil {
		return nil, fmt.Errorf("%s: create a client: %w", id, err)
	}
	m.clients.Add(id, client)
	return client, nil
}

// create creates a review as the identity.
func (m *Manager) create(ctx context.Context, id Identity, gvr schema.GroupVersionResource, kind string,
	spec map[string]any) (*unstructured.Unstructured, error) {
	client, err := m.Client(id)
	if err != nil {
		return nil, err
	}
	review := &unstructured.Unstructured{Object: map[string]any{}}
	if spec != nil {
		review.Object["spec"] = spec
	}
	review.SetGroupVersionKind(gvr.GroupVersion().WithKind(kind))
	return client.Resource(gvr).Create(ctx, review, metav1.CreateOptions{})
}

// httpClient returns an HTTP client that adds impersonation headers to requests and sends them with the shared
// transport. It does not use a rest.Config with an ImpersonationConfig: if the config has a dialer or a proxy, each
// client would create its own transport and leak its connections.
func (m *Manager) httpClient(id Identity) *http.Client {
	client := &http.Client{Transport: m.transport, Timeout: m.config.Timeout}
	if !id.IsPlatform() {
		user := transport.ImpersonationConfig{UserName: id.Username()}
		client.Transport = transport.NewImpersonatingRoundTripper(user, m.transport)
	}
	return client
}

// accessQuestion asks whether an identity can read a resource in a namespace.
type accessQuestion struct {
	identity  Identity
	resource  schema.GroupVersionResource
	namespace string
}

// CanRead reports whether the identity can get all objects of a resource in a namespace. If namespace is empty, the
// identity must be able to get the objects in all namespaces. CanRead always returns true for the platform's own
// identity. The answer can be up to one minute old.
func (m *Manager) CanRead(ctx context.Context, id Identity, gvr schema.GroupVersionResource, namespace string) (bool,
	error) {
	if id.IsPlatform() {
		return true, nil
	}
	return m.access.get(ctx, accessQuestion{id, gvr, namespace}, func(ctx context.Context) (bool, error) {
		review, err := m.create(ctx, id, authorizationv1.SchemeGroupVersion.WithResource("selfsubjectaccessreviews"),
			"SelfSubjectAccessReview", map[string]any{"resourceAttributes": map[string]any{
				"verb": "get", "group": gvr.Group, "version": gvr.Version, "resource": gvr.Resource,
				"namespace": namespace,
			}})
		if err != nil {
			return false, fmt.Errorf("review the access of %s to %s: %w", id, gvr.GroupResource(), err)
		}
		allowed, _, _ := unstructured.NestedBool(review.Object, "status", "allowed")
		return allowed, nil
	})
}

// unauthorized matches the API server's error messages for unauthorized requests. Messages from admission plugins and
// webhooks begin differently.
const unauthorized = `^\S+ ("([^"\\]|\\.)*" )?is forbidden: User "([^"\\]|\\.)*" cannot `

var (
	permissionMissing = regexp.MustCompile(unauthorized + `[-:a-z*]+ (resource|path) `)
	// impersonationForbidden matches messages about denied impersonation. The verb is impersonate. With constrained
	// impersonation, it is impersonate:MODE or impersonate-on:MODE:VERB.
	impersonationForbidden = regexp.MustCompile(unauthorized + `impersonate(-on)?[ :]`)
	// fieldsForbidden matches messages about the extra fields that writes carry with a fence on the server. They do not
	// depend on the identity.
	fieldsForbidden = regexp.MustCompile(unauthorized + `impersonate resource "userextras/`)
)

// IsPermissionMissing reports whether err means that a user lacks the permission for a request. Such an error does not
// contain object data.
func IsPermissionMissing(err error) bool { return isForbidden(err, permissionMissing) }

// IsImpersonationForbidden reports whether err means that the platform is not permitted to impersonate an identity.
// Other Forbidden errors concern the request itself, for example because the identity lacks a permission, or the fields
// of the fence on the server (see IsFenceForbidden).
func IsImpersonationForbidden(err error) bool {
	return isForbidden(err, impersonationForbidden) && !IsFenceForbidden(err)
}

// IsFenceForbidden reports whether err means that the platform is not permitted to set the fields that its writes carry
// with a fence on the server.
func IsFenceForbidden(err error) bool { return isForbidden(err, fieldsForbidden) }

func isForbidden(err error, message *regexp.Regexp) bool {
	var status apierrors.APIStatus
	return apierrors.IsForbidden(err) && errors.As(err, &status) && message.MatchString(status.Status().Message)
}

// ImpersonationRejection returns the Rejection to report when IsImpersonationForbidden returns true for an error.
func ImpersonationRejection(id Identity) *Rejection {
	return reject(ReasonPermissionMissing, "%s: the platform is not permitted to impersonate this ServiceAccount; %s",
		id, ImpersonationAdvice(id))
}

// ImpersonationAdvice describes how to grant the platform the permissions that it needs for an identity.
func ImpersonationAdvice(id Identity) string {
	return fmt.Sprintf("bind the platform's ServiceAccount to a Role in namespace %s with "+
		"verbs [get, impersonate], resources [serviceaccounts], resourceNames [%s]", id.Namespace, id.Name)
}

// FenceAdvice describes how to grant the platform the permission to set the fields of the fence on the server.
const FenceAdvice = "the operator must bind the platform's ServiceAccount to a ClusterRole with verbs [impersonate], " +
	"apiGroups [authentication.k8s.io], resources [userextras/" + serverfence.LeaseExtra + ", userextras/" +
	serverfence.HolderExtra + "]"

// ConsentAdvice describes how an existing ServiceAccount allows a Blueprint.
func ConsentAdvice(id Identity, blueprint string) string {
	return fmt.Sprintf("run kubectl annotate serviceaccount -n %s %s %s=%s, "+
		"or add the Blueprint to the existing annotation",
		id.Namespace, id.Name, AllowedBlueprints, blueprint)
}

// CreationAdvice describes how to create a ServiceAccount that allows a Blueprint.
func CreationAdvice(blueprint string) string {
	return fmt.Sprintf("create it with the annotation %s=%s", AllowedBlueprints, blueprint)
}
