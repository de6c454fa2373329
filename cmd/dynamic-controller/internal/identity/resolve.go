package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// protectedPrefix is the prefix of the namespaces that are reserved for Kubernetes itself.
const protectedPrefix = "kube-"

var serviceAccounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")

// Request contains the facts that determine the identity of an instance.
type Request struct {
	// Blueprint is the name of the instance's Blueprint, and ServiceAccountName its spec.serviceAccountName.
	Blueprint, ServiceAccountName string
	// Namespace is the namespace of the instance. It is empty for instances of cluster-scoped types, whose ServiceAccounts
	// are in the platform's namespace.
	Namespace string
}

// ServiceAccountName returns the name of the ServiceAccount that a Blueprint with the given spec.serviceAccountName
// runs as. It is empty for the platform's own identity. The error is a *Rejection.
func (m *Manager) ServiceAccountName(name string) (string, error) {
	name = cmp.Or(name, m.options.DefaultServiceAccount)
	switch {
	case name != "" && !(Identity{Namespace: metav1.NamespaceDefault, Name: name}).isValid():
		return "", reject(ReasonServiceAccountNotAllowed,
			"spec.serviceAccountName: %q is not the name of a ServiceAccount; use lower-case letters, digits, '-' and '.'", name)
	case name == "" && !m.options.AllowPlatformIdentity:
		return "", reject(ReasonIdentityRequired,
			"spec.serviceAccountName: required; set it, or ask the operator for --default-service-account")
	}
	return name, nil
}

// Resolve returns the identity of an instance. It returns a *Rejection if the identity cannot be used. Other errors are
// temporary.
func (m *Manager) Resolve(ctx context.Context, request Request) (Identity, error) {
	name, err := m.ServiceAccountName(request.ServiceAccountName)
	if err != nil || name == "" {
		return Identity{}, err
	}
	id := Identity{Namespace: cmp.Or(request.Namespace, m.options.Namespace), Name: name}
	own, err := m.own.get(ctx, "", m.review)
	if err != nil {
		return Identity{}, err
	}
	switch {
	case strings.HasPrefix(id.Namespace, protectedPrefix) && request.Namespace == "":
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: cluster-scoped types are not supported while the platform runs in a %s* namespace; "+
				"ask the operator to run it in another namespace", id, protectedPrefix)
	case strings.HasPrefix(id.Namespace, protectedPrefix):
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: ServiceAccounts in %s* namespaces are not allowed; create the instance in another namespace",
			id, protectedPrefix)
	case id == own:
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: the platform's own ServiceAccount is not allowed; use another one", id)
	case request.Namespace == m.options.Namespace:
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: ServiceAccounts in the platform's namespace are allowed only for cluster-scoped types; "+
				"create the instance in another namespace", id)
	case !id.isValid():
		return Identity{}, reject(ReasonServiceAccountNotAllowed, "%s: invalid name", id)
	}
	if err := m.checkConsent(ctx, consentQuestion{id, request.Blueprint}); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// keepOwn caches the platform's own identity for as long as the process runs.
func keepOwn(Identity) time.Duration { return math.MaxInt64 }

// review returns the ServiceAccount that the platform runs as. The result is the zero Identity if the platform's user
// is not a ServiceAccount.
func (m *Manager) review(ctx context.Context) (Identity, error) {
	review, err := m.create(ctx, Identity{}, authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews"),
		"SelfSubjectReview", nil)
	if err != nil {
		return Identity{}, fmt.Errorf("look up the platform's own user: %w", err)
	}
	user, _, _ := unstructured.NestedString(review.Object, "status", "userInfo", "username")
	if user == "" {
		return Identity{}, errors.New("look up the platform's own user: the response has no user name")
	}
	namespace, name, err := serviceaccount.SplitUsername(user)
	if err != nil {
		return Identity{}, nil //nolint:nilerr // the user is not a ServiceAccount
	}
	return Identity{Namespace: namespace, Name: name}, nil
}

// consentQuestion asks whether a ServiceAccount allows a Blueprint.
type consentQuestion struct {
	identity  Identity
	blueprint string
}

type consent string

const (
	consentGiven      consent = "given"
	consentMissing    consent = "missing"
	accountNotFound   consent = "not found"
	accountUnreadable consent = "unreadable"
)

func keepConsent(c consent) time.Duration {
	if c == consentGiven {
		return keepPositive
	}
	return keepNegative
}

// checkConsent returns a *Rejection unless the ServiceAccount exists and allows the Blueprint.
func (m *Manager) checkConsent(ctx context.Context, q consentQuestion) error {
	id := q.identity
	answer, err := m.consent.get(ctx, q, func(ctx context.Context) (consent, error) { return m.readConsent(ctx, q) })
	if err != nil {
		return err
	}
	switch answer {
	case consentMissing:
		return reject(ReasonConsentMissing,
			"%s: does not allow Blueprint %s; run kubectl annotate serviceaccount -n %s %s %s=%s, or add the name to the list",
			id, q.blueprint, id.Namespace, id.Name, AllowedBlueprints, q.blueprint)
	case accountNotFound:
		return reject(ReasonServiceAccountNotFound,
			"%s: not found; create it with the annotation %s=%s", id, AllowedBlueprints, q.blueprint)
	case accountUnreadable:
		return reject(ReasonPermissionMissing, "%s: the platform is not permitted to read it; %s", id, grant(id))
	}
	return nil
}

func (m *Manager) readConsent(ctx context.Context, q consentQuestion) (consent, error) {
	client, err := m.Client(Identity{})
	if err != nil {
		return "", err
	}
	accounts := client.Resource(serviceAccounts).Namespace(q.identity.Namespace)
	account, err := accounts.Get(ctx, q.identity.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return accountNotFound, nil
	case apierrors.IsForbidden(err):
		return accountUnreadable, nil
	case err != nil:
		return "", fmt.Errorf("%s: read its consent: %w", q.identity, err)
	}
	for name := range strings.SplitSeq(account.GetAnnotations()[AllowedBlueprints], ",") {
		if strings.TrimSpace(name) == q.blueprint {
			return consentGiven, nil
		}
	}
	return consentMissing, nil
}
