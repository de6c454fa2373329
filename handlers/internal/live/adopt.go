package live

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// CanAdoptFunc returns a function that returns an error if the owner cannot adopt objects. On its first call, the
// function reads the owner from the API server.
func CanAdoptFunc(
	ctx context.Context, client dynamic.Interface, id dynamiccontroller.ObjectIdentifiers,
	owner *unstructured.Unstructured,
) func() error {
	return sync.OnceValue(func() error { return canAdopt(ctx, client, id, owner) })
}

// canAdopt does not wrap errors about the owner because callers would otherwise mistake them for errors about the
// child.
func canAdopt(
	ctx context.Context, client dynamic.Interface, id dynamiccontroller.ObjectIdentifiers,
	owner *unstructured.Unstructured,
) error {
	now, err := Get(ctx, client, id)
	switch {
	case err != nil:
		return fmt.Errorf("read the owner before adopting: %s", err.Error())
	case now.GetUID() != owner.GetUID():
		return fmt.Errorf("the owner cannot adopt: %s: its UID is %s, not %s",
			patch.ErrReplaced.Error(), now.GetUID(), owner.GetUID())
	case now.GetDeletionTimestamp() != nil:
		return errors.New("the owner cannot adopt: it is being deleted")
	}
	return nil
}
