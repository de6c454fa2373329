package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/test/cluster"
)

// theCluster is where the demonstration takes place, as one of its users sees it.
type theCluster struct {
	kubeconfig string // what KUBECONFIG has to be to use it
	namespace  string // of the platform's lease
	crds       clientset.Interface
	kube       kubernetes.Interface
	dynamic    dynamic.Interface
	own        *cluster.Cluster // nil if it is somebody else's
	applied    bool             // the Blueprint, which is to be put away
	ownCRD     bool             // so is the type of Blueprints
	ownLease   bool             // and the lease
}

// openCluster takes the cluster of KUBECONFIG, or starts one if that is not set.
func openCluster(ctx context.Context, say func(string, ...any), namespace string) (_ *theCluster, err error) {
	c := &theCluster{namespace: namespace, kubeconfig: os.Getenv(clientcmd.RecommendedConfigPathEnvVar)}
	var cfg *rest.Config
	if c.kubeconfig != "" {
		say("taking the cluster of KUBECONFIG=%s", c.kubeconfig)
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
		if clientcmd.IsEmptyConfig(err) {
			err = errors.New("there is no such file, or nothing in it")
		}
		if err != nil {
			return nil, fmt.Errorf("KUBECONFIG=%s: %w", c.kubeconfig, err)
		}
		cfg.QPS = -1
	} else {
		say("starting a control plane: kube-apiserver and etcd")
		c.own, err = cluster.Start(ctx, cluster.Options{WithControllers: true})
		if err != nil {
			return nil, err
		}
		c.kubeconfig, cfg = c.own.Kubeconfig(), c.own.Config()
	}
	if err := c.connect(ctx, say, cfg); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *theCluster) connect(ctx context.Context, say func(string, ...any), cfg *rest.Config) (err error) {
	if c.crds, err = clientset.NewForConfig(cfg); err != nil {
		return err
	}
	if c.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return err
	}
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	version, err := c.crds.Discovery().ServerVersionWithContext(ctx)
	if err != nil {
		return fmt.Errorf("the cluster at %s: %w", cfg.Host, err)
	}
	say("kube-apiserver %s is ready at %s", version.GitVersion, cfg.Host)
	return c.refuseWorkOfOthers(ctx)
}

// refuseWorkOfOthers makes sure that the platform, which serves all Blueprints, finds none but that of the demonstration.
func (c *theCluster) refuseWorkOfOthers(ctx context.Context) error {
	crds := c.crds.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := crds.Get(ctx, crdName, metav1.GetOptions{}); isGone(err) != nil {
		return fmt.Errorf("the cluster has the type %s, which an earlier demonstration may have left: %w", crdName, isGone(err))
	}
	_, err := crds.Get(ctx, blueprintsCRD, metav1.GetOptions{})
	if c.ownCRD = apierrors.IsNotFound(err); c.ownCRD {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := c.in(blueprints).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(all.Items) > 0 {
		return fmt.Errorf("the cluster has %d Blueprints, which a platform serves or an earlier demonstration has left", len(all.Items))
	}
	return nil
}

// close puts away what was made: the cluster, or on somebody else's the Blueprint with all that came of it, and the lease
// and the type of Blueprints if it was this demonstration's replicas that made them.
func (c *theCluster) close() error {
	if c.own != nil {
		return c.own.Stop()
	}
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	if c.ownLease {
		err := c.kube.CoordinationV1().Leases(c.namespace).Delete(ctx, leaseName, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting the lease: %w", err))
		}
	}
	if c.applied {
		errs = append(errs, c.putAway(ctx))
	}
	if c.ownCRD {
		errs = append(errs, c.deleteType(ctx, blueprintsCRD))
	}
	return errors.Join(errs...)
}

// putAway deletes the Blueprint and what came of it if the story did not come so far. The platform does not run any more,
// and holds nothing back.
func (c *theCluster) putAway(ctx context.Context) error {
	free := []byte(`{"metadata":{"finalizers":null}}`)
	_, err := c.in(blueprints).Patch(ctx, blueprintName, types.MergePatchType, free, metav1.PatchOptions{})
	if err == nil {
		err = c.in(blueprints).Delete(ctx, blueprintName, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the Blueprint: %w", err)
	}
	err = c.in(webapps).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}, metav1.ListOptions{})
	if err == nil {
		err = see(ctx, sight{"the WebApps are gone", func(ctx context.Context) error {
			list, err := c.in(webapps).List(ctx, metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("there are %d", len(list.Items))
			}
			return err
		}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the WebApps: %w", err)
	}
	return c.deleteType(ctx, crdName)
}

func (c *theCluster) deleteType(ctx context.Context, name string) error {
	err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, name, metav1.DeleteOptions{})
	if err == nil {
		err = see(ctx, c.typeGone(name))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the type %s: %w", name, err)
	}
	return nil
}
