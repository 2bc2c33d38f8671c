// npx --yes eslint --no-config-lookup -c tests/render/page/eslint.config.mjs attnviz/render/page/js
const browser = [
  "window", "document", "history", "performance", "atob", "setTimeout", "clearTimeout",
  "requestAnimationFrame", "ResizeObserver", "ImageData",
];

export default [
  {
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "module",
      globals: Object.fromEntries(browser.map((name) => [name, "readonly"])),
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-undef": "error", "no-unused-vars": "error", "no-var": "error", "prefer-const": "error",
      "eqeqeq": "error", "no-shadow": "error", "no-implicit-globals": "error", "curly": "error",
      "no-eval": "error", "no-implied-eval": "error", "no-new-func": "error",
      "no-unreachable": "error", "no-fallthrough": "error", "no-redeclare": "error",
      "no-constant-condition": "error", "no-self-assign": "error", "use-isnan": "error",
      "max-lines": ["error", 400],
      "no-restricted-properties": ["error",
        { property: "innerHTML" }, { property: "outerHTML" }, { property: "insertAdjacentHTML" },
        { object: "document", property: "write" }],
      "no-restricted-globals": ["error", "fetch", "XMLHttpRequest", "WebSocket", "localStorage"],
    },
  },
];
