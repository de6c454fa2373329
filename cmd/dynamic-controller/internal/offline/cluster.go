package offline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/restmapper"
)

// Cluster provides the types of a cluster. It sends only read requests.
type Cluster struct {
	mapper  *restmapper.Mapper
	schemas *acceptance.OpenAPISchemas
	crds    clientset.Interface
	client  dynamic.Interface
}

// connectTimeout is the maximum time to wait for the kinds of a cluster.
const connectTimeout = 30 * time.Second

// WithCluster calls f with the types of a cluster.
func WithCluster(ctx context.Context, cfg *rest.Config, f func(*Cluster) error) (err error) {
	mapper, err := restmapper.New(logr.Discard(), cfg)
	if err != nil {
		return err
	}
	schemas, err1 := acceptance.NewOpenAPISchemas(cfg)
	crds, err2 := clientset.NewForConfig(cfg)
	client, err3 := dynamic.NewForConfig(cfg)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var mapping errgroup.Group
	mapping.Go(func() error { return mapper.Run(running) })
	defer func() {
		stop()
		err = errors.Join(err, mapping.Wait())
	}()
	const interval = 20 * time.Millisecond
	err = wait.PollUntilContextTimeout(ctx, interval, connectTimeout, true, func(context.Context) (bool, error) {
		return mapper.HasSynced(), nil
	})
	if err != nil {
		for _, e := range mapper.Errors() {
			err = fmt.Errorf("%w: %w", err, e.Err)
		}
		return fmt.Errorf("read the kinds of the cluster at %s: %w", cfg.Host, err)
	}
	return f(&Cluster{mapper, schemas, crds, client})
}

// crd returns a CustomResourceDefinition, or nil if it does not exist.
func (c *Cluster) crd(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return crd, err
}

// setGeneration sets the UID and the generation that the Blueprint would have after it is applied to the cluster.
// Messages about incompatible changes contain the generation.
func (c *Cluster) setGeneration(ctx context.Context, b *blueprint.Blueprint) error {
	now, err := c.client.Resource(blueprint.GroupVersionResource).Get(ctx, b.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the Blueprint or its type does not exist
	}
	if err != nil {
		return err
	}
	b.UID, b.Generation = now.GetUID(), now.GetGeneration()+1
	return nil
}
