package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// many is the number of WebApps in addition to the first one.
const many = 20

func numbered(i int) string { return fmt.Sprintf("number-%d", i) }

// runChapters runs all chapters of the demonstration. It prints each line after the API server has confirmed the step.
func runChapters(ctx context.Context, say printf, c *demoCluster, p platform) error {
	chapters := []func(context.Context, printf, *demoCluster) error{
		define, writeMany, deleteChild, rollOut, applyMistake,
		func(ctx context.Context, say printf, c *demoCluster) error {
			return failOver(ctx, say, c, p)
		},
	}
	if d, onNodes := p.(*deployed); onNodes {
		chapters = append(chapters, d.drainNode, d.updatePods)
	}
	for _, chapter := range append(chapters, deleteBlueprint) {
		if err := chapter(ctx, say, c); err != nil {
			return err
		}
	}
	say("all steps were observed at the API server")
	return nil
}

// define applies the Blueprint and an instance of its type while the platform is running.
func define(ctx context.Context, say printf, c *demoCluster) error {
	began := time.Now()
	generation, err := c.applyBlueprint(ctx)
	if err != nil {
		return err
	}
	applied := time.Now()
	if err := waitFor(ctx, c.hasCondition(blueprints, blueprintName, "Serving", "True", generation, nil)); err != nil {
		return err
	}
	say("applied the Blueprint %s, after waiting %s for the type Blueprint: its type %s is served after %s",
		blueprintName, milliseconds(applied.Sub(began)), crdName, since(applied))
	began = time.Now()
	if generation, err = c.write(ctx, "first", "Hello"); err != nil {
		return err
	}
	if err := waitFor(ctx, c.ready("first", generation)); err != nil {
		return err
	}
	say("created the WebApp first: it has a ConfigMap, a Service and a Deployment, and is Ready after %s", since(began))
	return nil
}

func writeMany(ctx context.Context, say printf, c *demoCluster) error {
	var took []time.Duration
	for i := range many {
		began := time.Now()
		generation, err := c.write(ctx, numbered(i), "Hello")
		if err != nil {
			return err
		}
		if err := waitFor(ctx, c.ready(numbered(i), generation)); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	say("created %d more, one at a time: each is Ready after %s (median), or at most %s",
		many, milliseconds(took[len(took)/2]), milliseconds(took[len(took)-1]))
	return nil
}

func deleteChild(ctx context.Context, say printf, c *demoCluster) error {
	before, err := c.in(configMaps).Get(ctx, "first-page", metav1.GetOptions{})
	if err != nil {
		return err
	}
	began := time.Now()
	if err := c.in(configMaps).Delete(ctx, "first-page", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := waitFor(ctx, c.page("first", "Hello", string(before.GetUID()))); err != nil {
		return err
	}
	say("deleted the ConfigMap first-page: it was created again after %s", since(began))
	return nil
}

// The template of the page before and after the change.
const (
	pageText    = "${self.spec.greeting}, from"
	changedText = "${self.spec.greeting} and welcome, from"
)

func rollOut(ctx context.Context, say printf, c *demoCluster) error {
	began := time.Now()
	// The schema changes too, in a way that can be reverted.
	_, err := c.applyBlueprint(ctx, pageText, changedText,
		"maxLength: 200", "maxLength: 200, description: The text of the page.")
	if err != nil {
		return err
	}
	for i := range many {
		if err := waitFor(ctx, c.page(numbered(i), "Hello and welcome", "")); err != nil {
			return err
		}
	}
	if err := waitFor(ctx, c.page("first", "Hello and welcome", "")); err != nil {
		return err
	}
	say("changed the Blueprint: all %d WebApps are updated after %s", many+1, since(began))
	return nil
}

// applyMistake applies a Blueprint with a mistake, and corrects it.
func applyMistake(ctx context.Context, say printf, c *demoCluster) error {
	began := time.Now()
	generation, err := c.applyBlueprint(ctx, pageText, "${self.spec.greting} and welcome, from")
	if err != nil {
		return err
	}
	var message string
	rejected := c.hasCondition(blueprints, blueprintName, "Accepted", "False", generation, &message)
	if err := waitFor(ctx, rejected); err != nil {
		return err
	}
	say("made a mistake in the Blueprint: it is rejected after %s, with this message:", since(began))
	for line := range strings.Lines(message) {
		say("    %s", strings.TrimSpace(line))
	}
	began = time.Now()
	if _, err := c.write(ctx, "first", "Good day"); err != nil {
		return err
	}
	if err := waitFor(ctx, c.page("first", "Good day and welcome", "")); err != nil {
		return err
	}
	say("the previous revision is still served: a changed WebApp is updated after %s", since(began))
	if generation, err = c.applyBlueprint(ctx, pageText, changedText); err != nil {
		return err
	}
	return waitFor(ctx, c.hasCondition(blueprints, blueprintName, "Accepted", "True", generation, nil))
}

// deleteBlueprint deletes the Blueprint, its instances and their children.
func deleteBlueprint(ctx context.Context, say printf, c *demoCluster) error {
	began := time.Now()
	if err := c.in(blueprints).Delete(ctx, blueprintName, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for _, s := range []condition{
		c.deleted(blueprints, blueprintName), c.typeDeleted(crdName),
		c.deleted(configMaps, "first-page"), c.deleted(services, "first"), c.deleted(deployments, "first"),
	} {
		if err := waitWithin(ctx, deletionTimeout, s); err != nil {
			return err
		}
	}
	say("deleted the Blueprint: %d WebApps, their children and their type are deleted after %s", many+2, since(began))
	return nil
}

// deletionTimeout is long because kube-controller-manager sends only 20 requests per second, and requires several for
// each WebApp: it also deletes the ReplicaSets of the Deployments.
const deletionTimeout = time.Minute

func since(began time.Time) string { return milliseconds(time.Since(began)) }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// stay applies the Blueprint and waits until ctx is cancelled.
func stay(ctx context.Context, say printf, c *demoCluster, p platform) error {
	if err := define(ctx, say, c); err != nil {
		return err
	}
	leader, err := c.leader(ctx)
	if err != nil {
		return err
	}
	help := ""
	if p, ok := p.(*processes); ok && p.diagnostics != nil {
		if err := c.createOperator(ctx); err != nil {
			return err
		}
		help = p.diagnostics.help(p, leader)
	}
	fmt.Printf(`
The platform runs until Ctrl-C. In another terminal, try:

  export KUBECONFIG=%s
  kubectl get blueprints,webapps
  kubectl get configmaps,services,deployments -l platform.example.com/parent
  kubectl patch webapp first --type merge -p '{"spec":{"greeting":"Good day"}}'
  kubectl get configmap first-page -o yaml
  kubectl delete service first && sleep 0.1 && kubectl get service first
  kubectl edit blueprint %s && kubectl describe blueprint %s   # make a mistake, and read the message
  kubectl get lease %s -n %s   # %s leads; after kill -9 of its process, the other replica takes over
%s
`, c.kubeconfig, blueprintName, blueprintName, leaseName, c.namespace, leader, help)
	<-ctx.Done()
	return context.Cause(ctx)
}
