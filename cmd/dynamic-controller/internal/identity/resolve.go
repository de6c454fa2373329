package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// protectedPrefix is the prefix of namespaces that are reserved for Kubernetes.
const protectedPrefix = "kube-"

// maxAccountBytes is the maximum size of a ServiceAccount. The annotations of an object can have 256 KiB.
const maxAccountBytes = 512 << 10

var serviceAccounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")

// Request contains the values that determine the identity of an instance.
type Request struct {
	// Blueprint is the name of the instance's Blueprint, and ServiceAccountName is the spec.serviceAccountName of that
	// Blueprint.
	Blueprint, ServiceAccountName string
	// Namespace is the namespace of the instance. It is empty for instances of cluster-scoped types. Their ServiceAccounts
	// are in the platform's namespace.
	Namespace string
}

// ServiceAccountName returns the name of the ServiceAccount that a Blueprint with the given spec.serviceAccountName
// runs as. It is empty for the platform's own identity.
func (m *Manager) ServiceAccountName(name string) (string, *Rejection) {
	name = cmp.Or(name, m.options.DefaultServiceAccount)
	switch {
	case name != "" && !(Identity{Namespace: metav1.NamespaceDefault, Name: name}).isValid():
		return "", reject(ReasonServiceAccountNotAllowed,
			"spec.serviceAccountName: %q is not a valid ServiceAccount name; "+
				"use lower-case letters, digits, '-' and '.'", name)
	case name == "" && !m.options.AllowPlatformIdentity:
		return "", reject(ReasonIdentityRequired,
			"spec.serviceAccountName: required; set it, or ask the operator to set --default-service-account")
	}
	return name, nil
}

// Resolve returns the identity of an instance. It returns a *Rejection if the identity cannot be used. All other errors
// are temporary.
func (m *Manager) Resolve(ctx context.Context, request Request) (Identity, error) {
	name, rejected := m.ServiceAccountName(request.ServiceAccountName)
	switch {
	case rejected != nil:
		return Identity{}, rejected
	case name == "":
		return Identity{}, nil
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
				"ask the operator to run the platform in another namespace", id, protectedPrefix)
	case strings.HasPrefix(id.Namespace, protectedPrefix):
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: ServiceAccounts in %s* namespaces are not allowed; create the instance in another namespace",
			id, protectedPrefix)
	case id == own:
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: the platform's own ServiceAccount is not allowed; use a different one", id)
	case request.Namespace == m.options.Namespace:
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: ServiceAccounts in the platform's namespace are allowed only for cluster-scoped types; "+
				"create the instance in another namespace", id)
	case !id.isValid():
		return Identity{}, reject(ReasonServiceAccountNotAllowed,
			"%s: invalid name; use lower-case letters, digits and '-'", id)
	}
	if err := m.checkConsent(ctx, consentQuestion{id, request.Blueprint}); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// review returns the ServiceAccount that the platform runs as, or the zero Identity if the platform's user is not a
// ServiceAccount.
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
	accountTooLarge   consent = "too large"
)

// checkConsent returns a *Rejection if the ServiceAccount does not exist, cannot be read, or does not allow the
// Blueprint.
func (m *Manager) checkConsent(ctx context.Context, q consentQuestion) error {
	id := q.identity
	answer, err := m.consent.get(ctx, q, func(ctx context.Context) (consent, error) { return m.readConsent(ctx, q) })
	if err != nil {
		return err
	}
	switch answer {
	case consentMissing:
		return reject(ReasonConsentMissing,
			"%s does not allow Blueprint %s; %s", id, q.blueprint, ConsentAdvice(id, q.blueprint))
	case accountNotFound:
		return reject(ReasonServiceAccountNotFound,
			"%s: not found; %s", id, CreationAdvice(q.blueprint))
	case accountTooLarge:
		return reject(ReasonServiceAccountNotAllowed, "%s: has more than %d bytes", id, maxAccountBytes)
	case accountUnreadable:
		return reject(ReasonPermissionMissing,
			"%s: the platform is not permitted to read this ServiceAccount; make sure that it exists, and %s",
			id, ImpersonationAdvice(id))
	}
	return nil
}

func (m *Manager) readConsent(ctx context.Context, q consentQuestion) (consent, error) {
	client, err := m.Client(Identity{})
	if err != nil {
		return "", err
	}
	accounts := client.Resource(serviceAccounts).Namespace(q.identity.Namespace)
	// Tenants can make a ServiceAccount large, and the answer is shared by reconciles, so that no memory is reserved.
	ctx = WithResponseBudget(ctx, &ResponseBudget{Bytes: maxAccountBytes})
	account, err := accounts.Get(ctx, q.identity.Name, metav1.GetOptions{})
	switch {
	case errors.Is(err, ErrResponseTooLarge):
		return accountTooLarge, nil
	case apierrors.IsNotFound(err):
		return accountNotFound, nil
	case apierrors.IsForbidden(err):
		return accountUnreadable, nil
	case err != nil:
		return "", fmt.Errorf("read %s: %w", q.identity, err)
	}
	for name := range strings.SplitSeq(account.GetAnnotations()[AllowedBlueprints], ",") {
		if strings.TrimSpace(name) == q.blueprint {
			return consentGiven, nil
		}
	}
	return consentMissing, nil
}
