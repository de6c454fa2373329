package identity

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// AllowedBlueprints is an annotation on ServiceAccounts. It contains a comma-separated list of the Blueprints that can
// use the ServiceAccount.
const AllowedBlueprints = "platform.example.com/allowed-blueprints"

// Identity is a ServiceAccount. The zero value is the platform's own identity.
type Identity struct{ Namespace, Name string }

// IsPlatform reports whether i is the platform's own identity.
func (i Identity) IsPlatform() bool { return i == Identity{} }

// String formats the identity for messages.
func (i Identity) String() string {
	if i.IsPlatform() {
		return "the platform's own identity"
	}
	return "ServiceAccount " + i.Namespace + "/" + i.Name
}

// Username returns the user name of the ServiceAccount: system:serviceaccount:NAMESPACE:NAME.
func (i Identity) Username() string { return serviceaccount.MakeUsername(i.Namespace, i.Name) }

// isValid reports whether the API server recognizes the user name as the name of this ServiceAccount. Otherwise, the
// API server would treat it as the name of an ordinary user.
func (i Identity) isValid() bool {
	namespace, name, err := serviceaccount.SplitUsername(i.Username())
	return err == nil && i == Identity{Namespace: namespace, Name: name}
}

// Reasons for a Rejection.
const (
	ReasonIdentityRequired         = "IdentityRequired"
	ReasonServiceAccountNotAllowed = "ServiceAccountNotAllowed"
	ReasonServiceAccountNotFound   = "ServiceAccountNotFound"
	ReasonConsentMissing           = "ConsentMissing"
	ReasonPermissionMissing        = "PermissionMissing"
)

// Rejection is returned if an identity cannot be used until a user changes something. It contains the reason and the
// message for a condition.
type Rejection struct{ Reason, Message string }

func (r *Rejection) Error() string { return r.Message }

func reject(reason, format string, args ...any) *Rejection {
	return &Rejection{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
