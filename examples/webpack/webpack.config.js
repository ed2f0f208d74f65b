import HtmlWebpackPlugin from "html-webpack-plugin";

export default {
  entry: "./main.js",
  plugins: [new HtmlWebpackPlugin({ template: "index.html" })],
};
