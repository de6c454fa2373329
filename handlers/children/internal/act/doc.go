// Package act performs the operations that package decide decides about, with one request each. It decides nothing:
// what a response means is up to the decision that it is the answer to.
package act
