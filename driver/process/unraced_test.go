//go:build !race

package process_test

const raced = false
